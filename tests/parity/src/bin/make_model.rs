//! Makes the model that a recipe's seed determines: `make_model RECIPE FOLDER`.

use std::path::Path;
use std::process::ExitCode;

use linnet_parity::SeededModel;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [recipe, folder] = arguments.as_slice() else {
        eprintln!("usage: make_model RECIPE FOLDER");
        return ExitCode::from(2);
    };
    let made = SeededModel::open(Path::new(recipe)).and_then(|model| model.write(Path::new(folder)));
    match made {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
