//! Sampling options of the command line.

use linnet_api::SamplingOverrides;

/// How answers are drawn. What is not given follows the model's own recommendation.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArguments {
    /// How freely words are chosen: 0 always takes the likeliest, 2 is wild [default: the model's, else 0.7]
    #[arg(long, value_name = "T", value_parser = between(0.0, 2.0))]
    temperature: Option<f32>,
    /// Choose among the likeliest words that together have this probability
    #[arg(long, value_name = "P", value_parser = between(0.0, 1.0))]
    top_p: Option<f32>,
    /// Choose among this many of the likeliest words; 0 for all
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Leave out words less likely than this share of the likeliest
    #[arg(long, value_name = "P", value_parser = between(0.0, 1.0))]
    min_p: Option<f32>,
    /// Make words that were just said less likely; 1 is off
    #[arg(long, value_name = "X", value_parser = between(0.01, 10.0))]
    repetition_penalty: Option<f32>,
}

impl SamplingArguments {
    /// The values that were given.
    pub(crate) fn overrides(&self) -> SamplingOverrides {
        SamplingOverrides {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            ..SamplingOverrides::default()
        }
    }
}

fn between(low: f32, high: f32) -> impl Fn(&str) -> Result<f32, String> + Clone + Send + Sync + 'static {
    move |text| match text.parse::<f32>() {
        Ok(value) if (low..=high).contains(&value) => Ok(value),
        _ => Err(format!("expected a number from {low} to {high}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_and_no_numbers_are_refused() {
        let parse = between(0.0, 2.0);
        assert_eq!(parse("0"), Ok(0.0));
        for text in ["-0.1", "2.1", "hot", "NaN", "inf", ""] {
            assert_eq!(parse(text), Err("expected a number from 0 to 2".to_owned()), "{text}");
        }
    }
}
