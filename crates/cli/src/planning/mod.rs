//! Plans: the model of the site on disk, what runs have taught, and what data there is.

mod calibrating;
mod earlier;
mod outcome;
mod scan;
mod work;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use bivouac_launch::Environment;
use bivouac_plan::{LearnedRatios, Site};

use crate::failure::Failure;
use crate::options::SiteArgs;

pub use calibrating::calibrate;
pub use earlier::{EarlierRuns, earlier};
pub use outcome::Watch;
pub use scan::{Amount, scan};
pub use work::work;

/// Most bytes of a model or of what was learned.
const FILE_MAX: u64 = 1 << 20;

/// Files of a site's model, and of what was learned of it.
#[derive(Debug)]
pub struct SiteFiles {
    pub model: PathBuf,
    learned: PathBuf,
}

impl SiteFiles {
    /// Returns the site that is meant.
    pub fn of(here: &Environment, args: &SiteArgs) -> Result<SiteFiles, Failure> {
        let own = || here.state_home.as_ref().map(|home| home.join("bivouac/site.toml"));
        let no_home = || Failure::new(1, "neither XDG_STATE_HOME nor HOME is set; name a file: --site");
        let model = args.site.clone().or_else(own).ok_or_else(no_home)?;
        let mut learned = model.clone().into_os_string();
        learned.push(".learned.json");
        Ok(SiteFiles { model, learned: learned.into() })
    }

    /// Returns the model.
    pub fn site(&self) -> Result<Site, Failure> {
        let failed =
            |code, cause: String| Failure::new(code, format_args!("{}: {cause}", self.model.display()));
        let missing = "measure the site (bivouac plan calibrate DIR, with a directory of its storage), or name its model: --site";
        let text = read(&self.model).map_err(|e| failed(1, e.to_string()))?;
        let text = text.ok_or_else(|| failed(1, format!("there is no model of the site; {missing}")))?;
        let site: Site = toml::from_str(&text).map_err(|error| failed(2, error.to_string()))?;
        site.check().map_err(|cause| failed(2, cause))?;
        Ok(site)
    }

    /// Returns what earlier runs have taught. None is no error; an unreadable file is reported and ignored.
    pub fn learned(&self) -> LearnedRatios {
        let read = read(&self.learned).map_err(|e| e.to_string());
        let parsed = read.and_then(|text| {
            text.map_or(Ok(LearnedRatios::default()), |text| {
                serde_json::from_str(&text).map_err(|e| e.to_string())
            })
        });
        parsed.unwrap_or_else(|error| {
            errln!(
                "bivouac: {}: {error}; it counts as empty (remove it: bivouac plan reset)",
                self.learned.display()
            );
            LearnedRatios::default()
        })
    }

    /// Writes down what was learned: whole or not at all.
    pub fn learn(&self, learned: &LearnedRatios) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(learned).map_err(std::io::Error::from)?;
        replace(&self.learned, &text)
    }

    /// Writes the model.
    pub fn write(&self, text: &str) -> Result<(), Failure> {
        if let Some(dir) = self.model.parent() {
            std::fs::create_dir_all(dir).map_err(|e| {
                Failure::new(1, format_args!("{}: {e}; name another file: --site", dir.display()))
            })?;
        }
        replace(&self.model, text)
    }

    /// Forgets what was learned; answers whether there was anything.
    pub fn forget(&self) -> Result<bool, Failure> {
        match std::fs::remove_file(&self.learned) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Failure::new(1, format_args!("{}: {error}", self.learned.display()))),
        }
    }
}

fn read(path: &Path) -> std::io::Result<Option<String>> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Ok(found) if found.len() > FILE_MAX => return Err(std::io::Error::other("is too large")),
        _ => {}
    }
    std::fs::read_to_string(path).map(Some)
}

/// Replaces a file: it is written beside it first, so that two runs that end together leave the one or the other.
fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    let mut beside = path.to_owned().into_os_string();
    beside.push(format!(".{}", std::process::id()));
    let beside = PathBuf::from(beside);
    let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path));
    written.map_err(|e| {
        let _not_there = std::fs::remove_file(&beside);
        Failure::new(1, format_args!("{}: {e}; choose another file: --site", path.display()))
    })
}
