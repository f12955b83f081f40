use super::{ChineseScript, Replacement, TextError, TextOptions, TextStage};

fn replacement(from: &str, to: &str) -> Replacement {
    Replacement { from: from.to_owned(), to: to.to_owned() }
}

/// Checks rows of (heard, expected).
fn check(options: &TextOptions, language: &str, rows: &[(&str, &str)]) {
    let stage = TextStage::new(options).unwrap();
    for (heard, expected) in rows {
        assert_eq!(stage.apply(heard, language), *expected, "{heard:?}");
        assert_eq!(stage.apply(heard, language), *expected, "the second time: {heard:?}");
    }
}

#[test]
fn without_options_nothing_changes() {
    let texts = ["", "  ", "Um, new line, twenty three comma 后面", "a\n\n b\t c"];
    check(&TextOptions::default(), "en", &texts.map(|text| (text, text)));
}

#[test]
fn replacements_are_exact_whole_words_and_keep_their_capitals() {
    let replacements = vec![
        replacement("new line", "\n"),
        replacement("new line please", "\n\n"),
        replacement("my mail", "Anna.Muster@example.org"),
        replacement("btw", "by the way"),
        replacement("C++", "C plus plus"),
        replacement("don't", "do not"),
        replacement("you know", ""),
        replacement("北京", "Beijing"),
        replacement("linnet", "LinNet"),
    ];
    let rows = [
        ("One. New line. Two", "One.\nTwo"),
        ("one new  line two", "one\ntwo"),
        ("NEW LINE, two", "\ntwo"),
        ("one new line please two", "one\n\ntwo"),
        ("one new lines two", "one new lines two"),
        ("renew line two", "renew line two"),
        ("Write to My Mail.", "Write to Anna.Muster@example.org."),
        ("BTW, I use C++.", "by the way, I use C plus plus."),
        ("I don’t, you know care", "I do not, care"),
        ("我在北京。", "我在Beijing。"),
        ("Linnets and linnet", "Linnets and LinNet"),
    ];
    check(&TextOptions { replacements, ..TextOptions::default() }, "en", &rows);
}

#[test]
fn what_a_replacement_puts_in_is_not_changed_by_anything_after_it() {
    let options = TextOptions {
        replacements: vec![
            replacement("snippet", "um, comma twenty three kubernetis snippet"),
            replacement("um", "UM"),
        ],
        remove_fillers: true,
        spoken_punctuation: true,
        numbers_as_digits: true,
        vocabulary: vec!["Kubernetes".to_owned()],
        ..TextOptions::default()
    };
    let rows = [("um snippet, um, twenty three", "um, comma twenty three kubernetis snippet, 23")];
    check(&options, "en", &rows);
}

#[test]
fn replacements_that_cannot_mean_anything_are_refused() {
    let refused = |replacements| TextStage::new(&TextOptions { replacements, ..TextOptions::default() }).unwrap_err();
    assert_eq!(refused(vec![replacement("a", "b"), replacement("  ", "c")]), TextError::EmptyReplacement { number: 2 });
    let twice = refused(vec![replacement("New  Line", "b"), replacement("new line", "c")]);
    assert_eq!(twice, TextError::DoubleReplacement { from: "new line".to_owned() });
    let empty = TextOptions { vocabulary: vec!["Linnet".to_owned(), "…".to_owned()], ..TextOptions::default() };
    assert_eq!(TextStage::new(&empty).unwrap_err(), TextError::EmptyTerm { number: 2 });
}

#[test]
fn fillers_go_and_words_that_look_like_them_stay() {
    let options = TextOptions { remove_fillers: true, ..TextOptions::default() };
    let rows = [
        ("Um, I think so.", "I think so."),
        ("I, um, think so.", "I, think so."),
        ("I um think uh so", "I think so"),
        ("I think so, um.", "I think so."),
        ("So. Uh, what now?", "So. What now?"),
        ("Hmm.", ""),
        ("Um... yes", "Yes"),
        ("Yes, uh", "Yes"),
        ("um um um yes", "yes"),
        ("The umbrella is humming at Erm Street", "The umbrella is humming at Street"),
        ("", ""),
    ];
    check(&options, "en", &rows);
    check(
        &options,
        "de",
        &[("Ähm, es geht um alles, äh, heute.", "Es geht um alles, heute."), ("um acht Uhr", "um acht Uhr")],
    );
    check(&options, "pt", &[("um gato", "um gato")]);
    check(&options, "xx", &[("um, uh", "um, uh")]);
}

#[test]
fn spoken_punctuation_is_written_and_words_that_are_meant_stay() {
    let options = TextOptions { spoken_punctuation: true, ..TextOptions::default() };
    let rows = [
        ("Hello comma world period how are you question mark", "Hello, world. How are you?"),
        ("Hello, comma, world. Period. How", "Hello, world. How"),
        ("Dear Anna, new line. thank you", "Dear Anna,\nThank you"),
        ("one new paragraph two", "one\n\nTwo"),
        ("one newline newline two", "one\n\nTwo"),
        ("It took a period of time", "It took a period of time"),
        ("Put the comma before the new line", "Put the comma before the new line"),
        ("he said open quote yes close quote period", "he said \"yes\"."),
        ("see open parenthesis below close parenthesis", "see (below)"),
        ("well hyphen known dash or not", "well-known – or not"),
        ("New line", "\n"),
        ("commas and periods", "commas and periods"),
    ];
    check(&options, "en", &rows);
    let german = [
        ("Hallo Komma Welt Punkt wie geht es Fragezeichen", "Hallo, Welt. Wie geht es?"),
        ("eins neue Zeile zwei", "eins\nZwei"),
        ("das ist der Punkt", "das ist der Punkt"),
    ];
    check(&options, "de", &german);
    check(&options, "fr", &[("bonjour virgule ça va point d’interrogation oui point", "bonjour, ça va\u{202f}? Oui.")]);
    check(&options, "es", &[("abrir interrogación qué cerrar interrogación nada punto", "¿qué? Nada.")]);
    check(&options, "ja", &[("comma new line", "comma new line")]);
}

#[test]
fn numbers_become_digits_where_english_writes_digits() {
    let options = TextOptions { numbers_as_digits: true, ..TextOptions::default() };
    let rows = [
        ("Twenty-three people", "23 people"),
        ("twenty three", "23"),
        ("one of two or nine", "one of two or nine"),
        ("ten, eleven and twelve", "10, 11 and 12"),
        ("one hundred and five", "105"),
        ("three hundred thousand two hundred and one", "300201"),
        ("two thousand twenty six", "2026"),
        ("nineteen eighty-four and twenty twenty six", "1984 and 2026"),
        ("three point one four", "3.14"),
        ("zero point five", "0.5"),
        ("that is the point", "that is the point"),
        ("three points", "three points"),
        ("three million people and two billion more", "3 million people and 2 billion more"),
        ("one hundred and", "100 and"),
        ("a hundred thousand", "a hundred thousand"),
        ("twenty-first", "twenty-first"),
        ("someone lonely attended", "someone lonely attended"),
        ("one two three", "one two three"),
        ("sixty zero", "60 zero"),
        ("hundred million hundred", "hundred million hundred"),
    ];
    check(&options, "en", &rows);
    check(&options, "de", &[("dreiundzwanzig twenty", "dreiundzwanzig twenty")]);
}

#[test]
fn misheard_terms_become_what_the_vocabulary_says() {
    let terms = ["Kubernetes", "Linnet", "Anthropic", "Visual Studio Code", "Zoë", "pgvector", "Kasparov", "McDonnell"];
    let options = TextOptions { vocabulary: terms.map(str::to_owned).to_vec(), ..TextOptions::default() };
    let rows = [
        ("kubernetis and Cubernetes", "Kubernetes and Kubernetes"),
        ("The linnets sing to linnit's friend", "The Linnet sing to Linnet's friend"),
        ("I open visual studio code", "I open Visual Studio Code"),
        ("visual studdio code", "Visual Studio Code"),
        ("kuber netes", "Kubernetes"),
        ("KASPAROV", "Kasparov"),
        ("Macdonnell", "McDonnell"),
        ("nothing here is like it", "nothing here is like it"),
    ];
    check(&options, "en", &rows);
    // Without a list of common words, only what is the term itself.
    check(&options, "sv", &[("kubernetis kubernetes", "kubernetis Kubernetes")]);
}

#[test]
fn the_most_common_words_are_never_replaced() {
    // Each of these is one letter away from a common word.
    let terms = ["Claud", "Therre", "Whit", "Peopl", "Hous", "Applle", "Linnen", "Wordl", "Setup", "Today"];
    let options = TextOptions { vocabulary: terms.map(str::to_owned).to_vec(), ..TextOptions::default() };
    let text = "There is a cloud with people in the house; apple and world, set up to day.";
    check(&options, "en", &[(text, text)]);
    let stage = TextStage::new(&options).unwrap();
    for word in include_str!("../../../../assets/words/en.txt").lines() {
        assert_eq!(stage.apply(word, "en"), word);
    }
}

#[test]
fn a_word_that_could_be_two_terms_stays_as_it_was_heard() {
    let options = TextOptions { vocabulary: vec!["Kerrin".to_owned(), "Kerryn".to_owned()], ..TextOptions::default() };
    check(&options, "en", &[("kerren kerrin", "kerren Kerrin")]);
}

#[test]
fn chinese_gets_the_script_that_was_asked_for_and_japanese_keeps_its_own() {
    let rows = [
        (ChineseScript::Simplified, "開放中文轉換，頭髮和發展。", "开放中文转换，头发和发展。"),
        (ChineseScript::Traditional, "开放中文转换，头发和发展。", "開放中文轉換，頭髮和發展。"),
        (ChineseScript::TraditionalTaiwan, "里面", "裡面"),
    ];
    for (script, heard, expected) in rows {
        check(&TextOptions { script: Some(script), ..TextOptions::default() }, "zh", &[(heard, expected)]);
    }
    let simplified = TextOptions { script: Some(ChineseScript::Simplified), ..TextOptions::default() };
    check(&simplified, "ja", &[("東京の開発", "東京の開発")]);
    check(&simplified, "yue", &[("開發", "开发")]);
    assert_eq!(ChineseScript::from_tag("zh-Hant"), Some(ChineseScript::Traditional));
    assert_eq!(ChineseScript::from_tag("ja"), None);
}

#[test]
fn four_hundred_terms_on_silence_give_nothing() {
    let vocabulary = (0..400).map(|index| format!("Term{index}")).collect();
    let options = TextOptions { vocabulary, spoken_punctuation: true, remove_fillers: true, ..TextOptions::default() };
    check(&options, "en", &[("", ""), (" ", " ")]);
}

#[test]
fn any_text_comes_through_every_step_without_a_fault() {
    use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
    let parts = [
        "um",
        "comma",
        "new",
        "line",
        "twenty",
        "hundred",
        "and",
        "point",
        "three",
        " ",
        "  ",
        ",",
        ".",
        "-",
        "'",
        "’s",
        "\n",
        "北京",
        "é",
        "ß",
        "İ",
        "…",
        "Linnet",
        "linit",
        "\u{301}",
        "👩‍👩‍👧",
        "don't",
        "-",
        "a",
        "the",
    ];
    let options = TextOptions {
        remove_fillers: true,
        replacements: vec![replacement("new line", "\n"), replacement("um um", "x"), replacement("i", "")],
        spoken_punctuation: true,
        numbers_as_digits: true,
        vocabulary: vec!["Linnet".to_owned(), "don't do".to_owned()],
        script: Some(ChineseScript::Simplified),
    };
    let stage = TextStage::new(&options).unwrap();
    let mut rng = StdRng::seed_from_u64(90);
    for _ in 0..3000 {
        let text: String = (0..rng.random_range(0..14)).map(|_| *parts.choose(&mut rng).unwrap()).collect();
        for language in ["en", "de", "zh", "fr", "xx"] {
            assert_eq!(stage.apply(&text, language), stage.apply(&text, language), "{text:?}");
        }
    }
}
