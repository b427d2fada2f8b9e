use super::*;
use crate::manifest::site;
use bivouac_objects::{ACCESS_KEY, SECRET_KEY, Server};

fn sample(title: &str, created: u64) -> (Manifest, Vec<DataSetFile>) {
    let id = new_id(title).unwrap();
    let (manifest, items) = crate::manifest::sample(vec![site()]);
    (Manifest { id, title: title.into(), created, expires: None, ..manifest }, items)
}

/// What all kinds of places have to do.
fn conforms(place: &Location, here: &Environment) {
    let web = Web::new(here);
    let catalogue = Catalogue::open(place, here, &web).unwrap();
    assert_eq!(catalogue.list().unwrap().entries, []);
    let (first, items) = sample("The wing, coarse", 5);
    let (second, _) = sample("The wing, fine", 7);
    catalogue.put(&first, &items).unwrap();
    catalogue.put(&second, &items).unwrap();
    assert_eq!(catalogue.put(&first, &items).unwrap_err().cause(), Cause::Exists);
    let found = catalogue.list().unwrap();
    assert_eq!((found.entries, found.damaged), (vec![second.clone(), first.clone()], Vec::new()));
    assert_eq!(catalogue.get(&first.id).unwrap(), (first.clone(), items));
    catalogue.remove(&first.id).unwrap();
    for gone in [catalogue.remove(&first.id).unwrap_err(), catalogue.get(&first.id).unwrap_err()] {
        assert!(gone.cause() == Cause::NotFound && gone.to_string().contains(&first.id), "{gone}");
    }
    assert_eq!(catalogue.list().unwrap().entries, std::slice::from_ref(&second));
    catalogue.remove(&second.id).unwrap();
    assert_eq!(catalogue.get("../x").unwrap_err().cause(), Cause::Usage);
    assert_eq!(catalogue.remove("../x").unwrap_err().cause(), Cause::Usage);
}

/// S561.
#[test]
fn a_directory_is_a_catalogue() {
    let dir = tempfile::tempdir().unwrap();
    conforms(&Location::Path(dir.path().to_owned()), &Environment::default());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
}

/// S561.
#[test]
fn a_bucket_is_a_catalogue() {
    let server = Server::start();
    let here = Environment::read(|name| match name {
        "AWS_ACCESS_KEY_ID" => Some(ACCESS_KEY.to_owned()),
        "AWS_SECRET_ACCESS_KEY" => Some(SECRET_KEY.to_owned()),
        "AWS_ENDPOINT_URL_S3" => Some(server.endpoint()),
        _ => None,
    });
    conforms(&Location::parse("s3://bucket/data sets").unwrap(), &here);
    conforms(&Location::parse("s3://bucket").unwrap(), &here);
}

/// S561: what is not whole is no entry, and what is not what was published is said to be so.
#[test]
fn half_entries_are_none_and_damaged_ones_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let (here, place) = (Environment::default(), Location::Path(dir.path().to_owned()));
    let web = Web::new(&here);
    let catalogue = Catalogue::open(&place, &here, &web).unwrap();
    let (half, items) = sample("half", 1);
    let (changed, _) = sample("changed", 2);
    let (good, _) = sample("good", 3);
    for manifest in [&half, &changed, &good] {
        catalogue.put(manifest, &items).unwrap();
    }
    let at = |manifest: &Manifest, file: &str| dir.path().join(&manifest.id).join(file);
    std::fs::remove_file(at(&half, ro_crate::FILE)).unwrap();
    let name = ro_crate::metalink_name(&changed.id);
    let text = std::fs::read_to_string(at(&changed, &name)).unwrap();
    std::fs::write(at(&changed, &name), text.replace("file:///site", "http://evil")).unwrap();
    let refusal = catalogue.get(&changed.id).unwrap_err();
    assert!(refusal.cause() == Cause::Damaged && refusal.to_string().contains("not the one"), "{refusal}");
    assert_eq!(catalogue.get(&half.id).unwrap_err().cause(), Cause::NotFound);
    std::fs::write(at(&changed, ro_crate::FILE), "{").unwrap();
    std::fs::create_dir(dir.path().join(".bivouac-new-x")).unwrap();
    std::fs::create_dir(dir.path().join("Not an entry")).unwrap();
    let found = catalogue.list().unwrap();
    assert_eq!(found.entries, std::slice::from_ref(&good));
    assert!(found.damaged.len() == 1 && found.damaged[0].contains(&changed.id), "{:?}", found.damaged);
    // An entry under the name of another is neither of the two.
    std::fs::rename(dir.path().join(&good.id), dir.path().join(&half.id).with_extension("")).unwrap_err();
    std::fs::rename(dir.path().join(&good.id), dir.path().join("other")).unwrap();
    assert!(catalogue.get("other").unwrap_err().to_string().contains("the name of another"));
}

#[test]
fn ids_are_readable_and_differ() {
    let id = new_id("The Wing: fine mesh, ä").unwrap();
    assert!(id.starts_with("the-wing-fine-mesh-") && ro_crate::is_id(&id), "{id}");
    assert_ne!(id, new_id("The Wing: fine mesh, ä").unwrap());
    for title in ["", "../..", "ä", &"x y".repeat(1000)] {
        assert!(ro_crate::is_id(&new_id(title).unwrap()), "{title}");
    }
}
