//! A real browser without a screen, which is spoken to over two pipes (the DevTools protocol).

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{Place, wait_until};

const PROGRAMS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// A browser with one page.
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: String,
    last: u64,
    /// What it said by itself: messages of the console, errors of scripts, refused loads.
    pub complaints: Vec<String>,
}

impl Browser {
    /// Starts one; nothing where there is none, which is said.
    pub fn start(place: &Place) -> Option<Browser> {
        let Some(program) = PROGRAMS.iter().find(|program| is_there(program)) else {
            println!("skipped: no Chromium is installed (scripts/setup test installs it)");
            return None;
        };
        let profile = place.path().join("browser");
        // The protocol is on descriptors 3 and 4.
        let script = "exec \"$@\" 3<&0 4>&1 >/dev/null 2>&1 </dev/null";
        let mut child = Command::new("sh")
            .args(["-c", script, "sh", program, "--headless=new", "--no-sandbox", "--disable-gpu"])
            .args([
                "--remote-debugging-pipe",
                "--no-first-run",
                "--disable-dev-shm-usage",
                "--no-proxy-server",
            ])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg("about:blank")
            .env("HOME", place.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut browser =
            Browser { child, to, from, session: String::new(), last: 0, complaints: Vec::new() };
        let target = browser.ask("Target.createTarget", json!({"url": "about:blank"}))["targetId"].clone();
        let attached = browser.ask("Target.attachToTarget", json!({"targetId": target, "flatten": true}));
        browser.session = attached["sessionId"].as_str().unwrap().to_owned();
        browser.ask("Emulation.setScrollbarsHidden", json!({"hidden": true}));
        for domain in ["Page.enable", "Runtime.enable", "Log.enable", "DOM.enable"] {
            browser.ask(domain, json!({}));
        }
        Some(browser)
    }

    /// Carries a command out.
    pub fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": method, "params": parameters});
        if !self.session.is_empty() {
            message["sessionId"] = self.session.clone().into();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let answer = self.next();
            if answer["id"] == self.last {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
            self.note(&answer);
        }
    }

    fn next(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.from.read_until(0, &mut bytes).unwrap();
        assert_eq!(bytes.pop(), Some(0), "the browser ended");
        serde_json::from_slice(&bytes).unwrap()
    }

    fn note(&mut self, event: &Value) {
        let parameters = &event["params"];
        match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => {
                self.complaints.push(parameters["exceptionDetails"].to_string())
            }
            Some("Log.entryAdded") => self.complaints.push(parameters["entry"]["text"].to_string()),
            Some("Runtime.consoleAPICalled") => self.complaints.push(parameters["args"].to_string()),
            // A script of somebody else would do so.
            Some("Page.javascriptDialogOpening") => panic!("the page shows a dialog: {parameters}"),
            _ => {}
        }
    }

    /// Goes to an address.
    pub fn open(&mut self, url: &str) {
        let went = self.ask("Page.navigate", json!({"url": url}));
        assert!(went["errorText"].is_null(), "{url}: {went}");
    }

    /// The value of an expression.
    pub fn value(&mut self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let result = self.ask("Runtime.evaluate", parameters);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// All text that the page shows.
    pub fn text(&mut self) -> String {
        self.value("document.body ? document.body.innerText : ''").as_str().unwrap_or_default().to_owned()
    }

    /// Waits until an expression is true.
    pub fn wait_for(&mut self, expression: &str) {
        wait_until(expression, || self.value(&format!("Boolean({expression})")) == true);
    }

    /// Presses a key, as `Tab` or `Enter`.
    pub fn press(&mut self, key: &str) {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            "ArrowLeft" => 37,
            "ArrowUp" => 38,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            other => panic!("{other}"),
        };
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let mut parameters =
                json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code});
            if kind == "keyDown" {
                parameters["text"] = text.into();
            }
            self.ask("Input.dispatchKeyEvent", parameters);
        }
    }

    /// Types a text where the focus is.
    pub fn types(&mut self, text: &str) {
        self.ask("Input.insertText", json!({"text": text}));
    }

    /// Gives files to what chooses some.
    pub fn choose(&mut self, selector: &str, files: &[&Path]) {
        let root = self.ask("DOM.getDocument", json!({}))["root"]["nodeId"].clone();
        let found = self.ask("DOM.querySelector", json!({"nodeId": root, "selector": selector}));
        let files: Vec<_> = files.iter().map(|file| file.to_str().unwrap()).collect();
        self.ask("DOM.setFileInputFiles", json!({"nodeId": found["nodeId"], "files": files}));
    }

    /// A screen of this width, light or dark.
    pub fn screen(&mut self, width: u32, height: u32, scheme: &str) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.ask("Emulation.setDeviceMetricsOverride", size);
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.ask("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// The whole page as a picture (PNG).
    pub fn picture(&mut self) -> Vec<u8> {
        let parameters = json!({"format": "png", "captureBeyondViewport": true});
        let data = self.ask("Page.captureScreenshot", parameters)["data"].clone();
        STANDARD.decode(data.as_str().unwrap()).unwrap()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _gone = self.to.write_all(b"{\"id\":1000000,\"method\":\"Browser.close\"}\0");
        // It ends when nobody speaks to it any more.
        let mut rest = Vec::new();
        while self.from.read_until(0, &mut rest).is_ok_and(|read| read > 0) {
            rest.clear();
        }
        let _ended = self.child.wait();
    }
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}
