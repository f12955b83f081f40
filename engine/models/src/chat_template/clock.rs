//! The clock of `strftime_now`: a local date and time, shown by the directives of Python's `strftime`.

use jiff::civil::DateTime;
use minijinja::{Error, ErrorKind};

/// A wall-clock date and time as `strftime_now` shows it, without a time zone (Python's naive `datetime.now()`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockTime(DateTime);

impl ClockTime {
    /// The machine's clock in its own time zone.
    pub fn local() -> Self {
        Self(jiff::Zoned::now().datetime())
    }

    /// A fixed time, for tests and reproducible prompts; `None` where there is no such day or hour.
    pub fn new(year: i16, month: i8, day: i8, hour: i8, minute: i8, second: i8) -> Option<Self> {
        DateTime::new(year, month, day, hour, minute, second, 0).ok().map(Self)
    }
}

/// The longest output of one `strftime_now` call, so that padding such as `%999999999d` costs nothing.
const MAXIMUM_LENGTH: usize = 4096;

/// `datetime.strftime` in the C locale: the C library's directives with its flags `-`, `_`, `0`, `^`, `#` and a
/// width. An unknown directive stays as it is written.
pub(super) fn strftime(now: ClockTime, format: &str) -> Result<String, Error> {
    let mut text = String::new();
    let mut rest = format;
    while let Some(start) = rest.find('%') {
        text.push_str(&rest[..start]);
        let directive = &rest[start..];
        let flags_end = directive[1..].find(|c| !matches!(c, '-' | '_' | '0' | '^' | '#')).map_or(directive.len(), |n| n + 1);
        let width_end = directive[flags_end..]
            .find(|c: char| !c.is_ascii_digit())
            .map_or(directive.len(), |n| n + flags_end);
        let Some(letter) = directive[width_end..].chars().next() else {
            text.push_str(directive);
            rest = "";
            break;
        };
        let end = width_end + letter.len_utf8();
        match field(now.0, letter) {
            Some(value) => {
                let width = directive[flags_end..width_end].parse::<usize>().ok();
                text.push_str(&value.padded(&directive[1..flags_end], width)?);
            }
            None => text.push_str(&directive[..end]),
        }
        rest = &directive[end..];
        if text.len() > MAXIMUM_LENGTH {
            return Err(too_long());
        }
    }
    text.push_str(rest);
    Ok(text)
}

fn too_long() -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("strftime_now makes more than {MAXIMUM_LENGTH} bytes"))
}

/// One directive's value before flags and width apply.
enum Field {
    Text(String),
    Number { value: i64, width: usize, pad: char },
}

impl Field {
    fn padded(self, flags: &str, width: Option<usize>) -> Result<String, Error> {
        let (text, mut pad, default_width) = match self {
            Self::Text(text) => (text, ' ', 0),
            Self::Number { value, width, pad } => (value.to_string(), pad, width),
        };
        let mut upper = false;
        let mut pads = true;
        for flag in flags.chars() {
            match flag {
                '-' => pads = false,
                '_' => (pads, pad) = (true, ' '),
                '0' => (pads, pad) = (true, '0'),
                '^' => upper = true,
                _ => {}
            }
        }
        let width = if pads { width.unwrap_or(default_width) } else { 0 };
        if width > MAXIMUM_LENGTH {
            return Err(too_long());
        }
        let missing = width.saturating_sub(text.chars().count());
        let text = if upper { text.to_uppercase() } else { text };
        Ok(std::iter::repeat_n(pad, missing).collect::<String>() + &text)
    }
}

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

fn field(now: DateTime, letter: char) -> Option<Field> {
    let number = |value: i64, width: usize| Field::Number { value, width, pad: '0' };
    let blank = |value: i64, width: usize| Field::Number { value, width, pad: ' ' };
    let text = |text: String| Field::Text(text);
    let (year, month, day) = (i64::from(now.year()), i64::from(now.month()), i64::from(now.day()));
    let (hour, minute, second) = (i64::from(now.hour()), i64::from(now.minute()), i64::from(now.second()));
    let hour_of_twelve = (hour + 11) % 12 + 1;
    let from_sunday = i64::from(now.weekday().to_sunday_zero_offset());
    let from_monday = i64::from(now.weekday().to_monday_zero_offset());
    let day_of_year = i64::from(now.day_of_year());
    let day_name = DAYS.get(usize::try_from(from_sunday).ok()?)?;
    let month_name = MONTHS.get(usize::try_from(month - 1).ok()?)?;
    let half = if hour < 12 { "AM" } else { "PM" };
    let iso = now.iso_week_date();
    Some(match letter {
        'a' => text(day_name[..3].to_owned()),
        'A' => text((*day_name).to_owned()),
        'b' | 'h' => text(month_name[..3].to_owned()),
        'B' => text((*month_name).to_owned()),
        'c' => text(format!(
            "{} {} {day:2} {hour:02}:{minute:02}:{second:02} {year}",
            &day_name[..3],
            &month_name[..3]
        )),
        'C' => number(year / 100, 2),
        'd' => number(day, 2),
        'D' | 'x' => text(format!("{month:02}/{day:02}/{:02}", year % 100)),
        'e' => blank(day, 2),
        'f' => text(format!("{:06}", now.subsec_nanosecond() / 1000)),
        'F' => text(format!("{year}-{month:02}-{day:02}")),
        'g' => number(i64::from(iso.year()) % 100, 2),
        'G' => number(i64::from(iso.year()), 1),
        'H' => number(hour, 2),
        'I' => number(hour_of_twelve, 2),
        'j' => number(day_of_year, 3),
        'k' => blank(hour, 2),
        'l' => blank(hour_of_twelve, 2),
        'm' => number(month, 2),
        'M' => number(minute, 2),
        'n' => text("\n".to_owned()),
        'p' => text(half.to_owned()),
        'P' => text(half.to_lowercase()),
        'r' => text(format!("{hour_of_twelve:02}:{minute:02}:{second:02} {half}")),
        'R' => text(format!("{hour:02}:{minute:02}")),
        'S' => number(second, 2),
        't' => text("\t".to_owned()),
        'T' | 'X' => text(format!("{hour:02}:{minute:02}:{second:02}")),
        'u' => number(from_monday + 1, 1),
        'U' => number((day_of_year + 6 - from_sunday) / 7, 2),
        'V' => number(i64::from(iso.week()), 2),
        'w' => number(from_sunday, 1),
        'W' => number((day_of_year + 6 - from_monday) / 7, 2),
        'y' => number(year % 100, 2),
        'Y' => number(year, 1),
        // A naive datetime has no zone.
        'z' | 'Z' => text(String::new()),
        '%' => text("%".to_owned()),
        _ => return None,
    })
}

