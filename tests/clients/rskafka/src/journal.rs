//! The log of rskafka (`tracing`): the only source of the brokers that it knows.
//!
//! Prints "broker\tID HOST:PORT" for each address that it learns, "dialled\tHOST:PORT" for each address that it
//! connects to, and "log" for warnings, errors and attempts that it repeats.

use std::collections::BTreeMap;
use std::fmt::Debug;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::tell;

struct Journal;

/// The fields of one log entry, as text.
#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl Subscriber for Journal {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("rskafka") && *metadata.level() <= Level::INFO
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let fields = fields.0;
        if let (Some(id), Some(address)) = (fields.get("broker"), fields.get("new")) {
            tell("broker", format!("{id} {address}"));
        } else if let Some(address) = fields.get("url") {
            tell("dialled", address);
        } else if *event.metadata().level() < Level::INFO || fields.contains_key("backoff_secs") {
            tell("log", format!("{fields:?}"));
        }
    }

    // rskafka has no spans.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

pub fn start() {
    tracing::subscriber::set_global_default(Journal).expect("the first subscriber");
}
