//! `bivouac up`.

use std::process::ExitCode;

use bivouac_launch::{CAUGHT, LaunchError, MountWay, Signals, Surroundings, cannot_mount, table};
use bivouac_mount::fusermount;

use crate::failure::Failure;
use crate::forming::{Formed, form};
use crate::options::UpArgs;

/// Starts a formation and leaves it running.
pub fn run(here: &Surroundings, args: &UpArgs) -> Result<ExitCode, Failure> {
    let signals = Signals::catch(&CAUGHT).map_err(|e| LaunchError::system("signals", e))?;
    if !args.no_mount && MountWay::choose(here, &fusermount::PROGRAMS) == MountWay::Namespaces {
        return Err(cannot_mount().into());
    }
    let place = (!args.no_mount).then_some(&args.place);
    let formed = form(here, args.name.clone(), &args.formation, place, &signals)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&json(&formed)).map_err(std::io::Error::from)?);
    } else {
        print!("{}", text(&formed));
    }
    Ok(ExitCode::SUCCESS)
}

fn json(formed: &Formed) -> serde_json::Value {
    serde_json::json!({
        "name": formed.name,
        "directory": formed.dir.path(),
        "mounts": formed.mounts,
        "steps": formed.steps,
    })
}

fn text(formed: &Formed) -> String {
    let mut text = format!("formation {} is up\n", formed.name);
    for mount in &formed.mounts {
        text.push_str(&format!("mounted at {}\n", mount.display()));
    }
    text + &table(&formed.steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_launch::{Phase, StateDir};

    fn formed() -> Formed {
        Formed {
            name: "x".parse().unwrap(),
            dir: StateDir::at("/run/b/x".into()),
            mounts: vec!["/m/0".into(), "/m/1".into()],
            steps: vec![Phase { name: "daemons".into(), us: 2000 }],
        }
    }

    #[test]
    fn people_see_mounts_and_times() {
        let text = text(&formed());
        assert!(
            text.starts_with("formation x is up\nmounted at /m/0\nmounted at /m/1\nwhere the time went:\n"),
            "{text}"
        );
        assert!(text.contains("daemons        2.0 ms"), "{text}");
    }

    #[test]
    fn scripts_see_the_same() {
        let json = json(&formed());
        assert_eq!((&json["name"], &json["mounts"][1]), (&"x".into(), &"/m/1".into()));
        assert_eq!((&json["steps"][0]["us"], &json["directory"]), (&2000.into(), &"/run/b/x".into()));
    }
}
