//! Sizes and times on the command line.

use std::time::Duration;

/// Reads a number of bytes, such as `512MB`, `8GiB` or `1.5 GB`; 0 needs no unit.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 9] = [
        ("B", 1),
        ("kB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
    ];
    const EXPECTED: &str = "expected a size with its unit, such as 512MB or 8GB";
    let (number, unit) = split(text).ok_or(EXPECTED)?;
    let size = match UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)) {
        Some((_, size)) => *size,
        None if unit.is_empty() && number == 0.0 => 1,
        None => return Err(EXPECTED.to_owned()),
    };
    Ok((number * size as f64) as u64)
}

/// Reads a time, such as `200ms`, `90s`, `30m` or `2h`; 0 needs no unit.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    const UNITS: [(&str, f64); 4] = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    const EXPECTED: &str = "expected a time with its unit, such as 200ms, 90s, 30m or 2h";
    let (number, unit) = split(text).ok_or(EXPECTED)?;
    let seconds = match UNITS.iter().find(|(name, _)| *name == unit) {
        Some((_, seconds)) => *seconds,
        None if unit.is_empty() && number == 0.0 => 1.0,
        None => return Err(EXPECTED.to_owned()),
    };
    Duration::try_from_secs_f64(number * seconds).map_err(|_| EXPECTED.to_owned())
}

/// As [`duration`], for times that are so short that a number alone means milliseconds.
pub(crate) fn milliseconds(text: &str) -> Result<Duration, String> {
    match text.trim().parse::<u32>() {
        Ok(number) => Ok(Duration::from_millis(u64::from(number))),
        Err(_) => duration(text),
    }
}

/// The number and what stands behind it.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number = text[..end].parse::<f64>().ok().filter(|number| number.is_finite())?;
    Some((number, text[end..].trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_unit_and_refused_without() {
        for (text, expected) in [
            ("0", 0),
            ("512MB", 512_000_000),
            ("512 mb", 512_000_000),
            ("8GiB", 8 << 30),
            ("1.5GB", 1_500_000_000),
            ("100B", 100),
            ("2tib", 2 << 40),
        ] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in ["", "8", "GB", "-1GB", "1e3", "8 gigs", "1.2.3GB", "NaN", "infGB"] {
            assert!(bytes(text).unwrap_err().contains("512MB"), "{text}");
        }
    }

    #[test]
    fn times_are_read_with_their_unit_and_refused_without() {
        for (text, milliseconds) in [("0", 0), ("200ms", 200), ("1.5s", 1500), ("30m", 1_800_000), ("2 h", 7_200_000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        assert_eq!(milliseconds("150"), Ok(Duration::from_millis(150)));
        assert_eq!(milliseconds("1s"), Ok(Duration::from_secs(1)));
        for text in ["", "30", "m", "-5m", "5 minutes", "99999999999999999999h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
