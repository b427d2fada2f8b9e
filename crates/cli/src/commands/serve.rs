//! `bivouac serve`: the server for HTTP of one host, which the supervisor starts.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bivouac_client::{Client, Member};
use bivouac_http::{Options, Page, Route};
use bivouac_launch::handover::FromNode;
use bivouac_launch::{Environment, HttpHandover, HttpNews, LaunchError, StateDir, raise_descriptor_limit};
use bivouac_monitor::status::look_here;
use bivouac_monitor::{MetricsFormat, render_metrics};
use bivouac_types::NodeId;

use crate::failure::Failure;
use crate::{logging, web};

/// Serves until the supervisor is gone, or ends it.
pub fn run(here: &Environment, dir: PathBuf) -> Result<ExitCode, Failure> {
    logging::raise_at(here, "http", &StateDir::at(dir.clone()));
    let (handover, listener, nodes) = HttpHandover::from_stdin()?;
    raise_descriptor_limit();
    let options = options(here, &StateDir::at(dir), listener, nodes);
    let options = options.inspect_err(|failure| {
        // It will see the end of this process in any case.
        let _or_gone = handover.tell(&FromNode::Failed { message: failure.to_string() });
    })?;
    let follow = followed(options.member.client().ok(), handover);
    let ready = move || {
        std::thread::spawn(follow);
    };
    bivouac_http::serve(options, ready).map_err(|error| LaunchError::system("the server for HTTP", error))?;
    Ok(ExitCode::SUCCESS)
}

/// Says that a server is ready, and then keeps its client to what the supervisor says of nodes, until that is gone:
/// then the process ends.
pub(super) fn followed(client: Option<&Client>, handover: HttpHandover) -> impl FnOnce() + Send + 'static {
    let liveness = client.and_then(|client| client.liveness()).cloned();
    let places = client.map(Client::places);
    move || {
        if let Err(error) = handover.tell(&FromNode::Ready { phases: Vec::new() }) {
            log::warn!(why:% = error; "the supervisor does not hear");
        }
        handover.wait(|news| match news {
            HttpNews::Dead { node, dead } => {
                liveness.iter().for_each(|liveness| liveness.set_dead(node, dead));
            }
            HttpNews::Map(map) => {
                let map = Arc::new(*map);
                let _or_older = places.as_ref().map(|places| places.take_map(&map));
            }
        });
        // Nobody would start it again, and `down` would not know of later ones.
        log::warn!("the supervisor is gone: ending");
        std::process::exit(0);
    }
}

fn options(
    here: &Environment,
    dir: &StateDir,
    listener: TcpListener,
    nodes: Vec<u16>,
) -> Result<Options, Failure> {
    let state = dir.read_living()?;
    let wish = state.http.as_ref().map(|http| &http.wish);
    let domain = wish.and_then(|wish| wish.domain.as_ref()).map(|domain| domain.0.clone());
    let address = listener.local_addr()?;
    let pem = if wish.is_some_and(|wish| wish.plain) {
        None
    } else if let Some(path) = wish.and_then(|wish| wish.certificate.as_ref()) {
        Some(own_certificate(path)?)
    } else {
        let mut names =
            vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned(), here.host.clone()];
        names.extend(domain.iter().flat_map(|domain| [domain.clone(), format!("*.{domain}")]));
        names.extend((!address.ip().is_unspecified()).then(|| address.ip().to_string()));
        names.sort();
        names.dedup();
        let (certificate, key) = dir.http_certificate(|| bivouac_http::make_certificate(&names))?;
        Some(certificate + &key)
    };
    let member = Member::join(dir.path(), Duration::from_millis(state.wait_ms))?;
    // Those that are lost later the supervisor tells.
    if let Some(liveness) = member.client()?.liveness() {
        state.lost().for_each(|node| liveness.set_dead(NodeId(node), true));
    }
    Ok(Options {
        listener,
        member,
        secret: dir.secret()?,
        pem,
        host: here.host.clone(),
        domain,
        nodes,
        routes: vec![metrics(dir.clone())],
        views: web::views(here, dir, &state),
    })
}

fn own_certificate(path: &Path) -> Result<String, Failure> {
    let refused = |why: std::io::Error| {
        let remedy = "it has to have the certificate, those that vouch for it, and the private key, one behind the other, as PEM";
        Failure::new(1, format_args!("certificate {}: {why}; {remedy}", path.display()))
    };
    // Reading a pipe would wait for a writer.
    if !std::fs::metadata(path).map_err(refused)?.is_file() {
        return Err(refused(std::io::Error::other("is not a regular file")));
    }
    let pem = std::fs::read_to_string(path).map_err(refused)?;
    bivouac_http::check_certificate(&pem).map_err(refused)?;
    Ok(pem)
}

/// Path of the metrics. A key may be for this alone.
pub const METRICS: &str = "/metrics";

/// Returns the page with the figures of what is on this host, in the form that is asked for.
fn metrics(dir: StateDir) -> Route {
    let page = move |accept: &str| {
        let (form, content_type) = if accept.contains("application/openmetrics-text") {
            (MetricsFormat::Openmetrics, "application/openmetrics-text; version=1.0.0; charset=utf-8")
        } else {
            (MetricsFormat::Prometheus, "text/plain; version=0.0.4; charset=utf-8")
        };
        let report = look_here(&dir).map_err(|failure| failure.to_string())?;
        Ok(Page { content_type, bytes: render_metrics(&report, form).into_bytes() })
    };
    Route { path: METRICS, page: Box::new(page) }
}
