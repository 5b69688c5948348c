//! A program around rskafka for tests. Each command has its own function.
//!
//!     rskafka-client [--backoff INIT_MS,MAX_MS,BASE] COMMAND BOOTSTRAP ...
//!
//! The program prints each event in a line, "WHAT\tVALUE": "failed" for an error that an application sees, and
//! "closed" at the end of a successful run. `journal.rs` describes the output about brokers.

mod admin;
mod journal;
mod work;

use std::error::Error;
use std::fmt::Display;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rskafka::BackoffConfig;
use rskafka::chrono::{DateTime, Utc};
use rskafka::client::{Client, ClientBuilder};

pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const USAGE: &str = "rskafka-client [--backoff INIT_MS,MAX_MS,BASE] COMMAND BOOTSTRAP ...

  work BOOTSTRAP TOPIC         produce and consume until standard input ends
  admin BOOTSTRAP NAME         make, use and delete a topic
  addresses BOOTSTRAP TOPIC    connect to each leader of a topic, and to the controller";

pub fn tell(what: &str, value: impl Display) {
    println!("{what}\t{}", value.to_string().replace('\n', " "));
}

/// The time, without the digits that Kafka does not keep.
pub fn now() -> DateTime<Utc> {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock after 1970");
    DateTime::from_timestamp_millis(since.as_millis() as i64).expect("a clock before 262,000")
}

/// The value of `--backoff`. There is no deadline: a call is repeated until it succeeds.
fn backoff(value: &str) -> Option<BackoffConfig> {
    let numbers = value
        .split(',')
        .map(str::parse)
        .collect::<Result<Vec<f64>, _>>()
        .ok()?;
    let [init_ms, max_ms, base] = numbers[..] else {
        return None;
    };
    Some(BackoffConfig {
        init_backoff: Duration::from_secs_f64(init_ms / 1000.0),
        max_backoff: Duration::from_secs_f64(max_ms / 1000.0),
        base,
        deadline: None,
    })
}

async fn client_of(bootstrap: &str, config: BackoffConfig) -> Outcome<Client> {
    let brokers = bootstrap.split(',').map(str::to_owned).collect();
    Ok(ClientBuilder::new(brokers)
        .client_id("rskafka")
        .backoff_config(config)
        .build()
        .await?)
}

async fn run(command: &str, arguments: &[&str], config: BackoffConfig) -> Option<Outcome<()>> {
    let [bootstrap, name] = arguments else { return None };
    let client = match client_of(bootstrap, config).await {
        Ok(client) => client,
        Err(error) => return Some(Err(error)),
    };
    match command {
        "work" => Some(work::work(client, name).await),
        "admin" => Some(admin::administer(&client, name).await),
        "addresses" => Some(admin::connect(&client, name).await),
        _ => None,
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (config, words) = match words[..] {
        ["--backoff", value, ref rest @ ..] => (backoff(value), rest),
        ref rest => (Some(BackoffConfig::default()), rest),
    };
    journal::start();
    let (Some(config), [command, arguments @ ..]) = (config, words) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(command, arguments, config).await {
        Some(Ok(())) => {
            tell("closed", "");
            ExitCode::SUCCESS
        }
        Some(Err(error)) => {
            tell("failed", error);
            ExitCode::FAILURE
        }
        None => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}
