//! Topics, their records and their offsets; and connections to all brokers that rskafka may need.

use std::collections::BTreeMap;
use std::time::Duration;

use rskafka::client::Client;
use rskafka::client::error::Error;
use rskafka::client::partition::{Compression, OffsetAt, PartitionClient, UnknownTopicHandling};
use rskafka::record::Record;

use crate::{Outcome, now, tell};

const PARTITIONS: i32 = 5;
const RECORDS: i64 = 3;
const TIMEOUT_MS: i32 = 10_000;
const EVERY: Duration = Duration::from_millis(50);
const BYTES: std::ops::Range<i32> = 1..1_000_000;

/// The refused operation, by its name.
fn refused<T>(outcome: Result<T, Error>) -> String {
    match outcome {
        Err(Error::ServerError { protocol_error, .. }) => format!("{protocol_error:?}"),
        Err(error) => error.to_string(),
        Ok(_) => "nothing".to_owned(),
    }
}

async fn partitions_of(client: &Client, name: &str) -> Outcome<Option<usize>> {
    let topics = client.list_topics().await?;
    Ok(topics
        .into_iter()
        .find(|each| each.name == name)
        .map(|each| each.partitions.len()))
}

/// Makes a topic, fills it, lists its offsets, reads it, removes records, and deletes it.
pub async fn administer(client: &Client, name: &str) -> Outcome<()> {
    let controller = client.controller_client()?;
    controller.create_topic(name, PARTITIONS, 3, TIMEOUT_MS).await?;
    tell(
        "created again",
        refused(controller.create_topic(name, PARTITIONS, 3, TIMEOUT_MS).await),
    );
    tell(
        "too few partitions",
        refused(controller.create_topic("none", 0, 3, TIMEOUT_MS).await),
    );
    while partitions_of(client, name).await? != Some(PARTITIONS as usize) {
        tokio::time::sleep(EVERY).await;
    }
    tell("partitions", PARTITIONS);
    for partition in 0..PARTITIONS {
        let client = client
            .partition_client(name, partition, UnknownTopicHandling::Retry)
            .await?;
        use_partition(&client).await?;
    }
    controller.delete_topic(name, TIMEOUT_MS).await?;
    while partitions_of(client, name).await?.is_some() {
        tokio::time::sleep(EVERY).await;
    }
    tell(
        "deleted again",
        refused(controller.delete_topic(name, TIMEOUT_MS).await),
    );
    Ok(())
}

async fn use_partition(client: &PartitionClient) -> Outcome<()> {
    let partition = client.partition();
    let timestamp = now();
    let records = (0..RECORDS)
        .map(|number| Record {
            key: Some(format!("key {number}").into_bytes()),
            value: (number > 0).then(|| format!("value {number}").into_bytes()),
            headers: BTreeMap::from([("header".to_owned(), vec![0, 255])]),
            timestamp: timestamp + Duration::from_secs(number as u64),
        })
        .collect();
    tell(
        "offsets",
        format!(
            "{partition} {:?}",
            client.produce(records, Compression::NoCompression).await?
        ),
    );
    let (found, end) = client.fetch_records(0, BYTES, 1000).await?;
    for each in found {
        let Record {
            key,
            value,
            headers,
            timestamp: at,
        } = each.record;
        let seconds = (at - timestamp).num_seconds();
        tell(
            "record",
            format!(
                "{partition} {} {key:?} {value:?} {headers:?} {seconds}",
                each.offset
            ),
        );
    }
    tell("end", format!("{partition} {end}"));
    client.delete_records(1, TIMEOUT_MS).await?;
    let second = timestamp + Duration::from_secs(2);
    for at in [OffsetAt::Earliest, OffsetAt::Timestamp(second), OffsetAt::Latest] {
        tell("offset", format!("{partition} {}", client.get_offset(at).await?));
    }
    for offset in [0, RECORDS + 1] {
        tell(
            "out of range",
            format!(
                "{partition} {}",
                refused(client.fetch_records(offset, BYTES, 0).await)
            ),
        );
    }
    Ok(())
}

/// Connects to the leader of each partition, and to the controller, which refuses the request.
pub async fn connect(client: &Client, topic: &str) -> Outcome<()> {
    for partition in 0..partitions_of(client, topic).await?.unwrap_or_default() {
        client
            .partition_client(topic, partition as i32, UnknownTopicHandling::Retry)
            .await?;
    }
    let controller = client.controller_client()?;
    tell(
        "refused",
        refused(controller.create_topic("none", 0, 1, TIMEOUT_MS).await),
    );
    Ok(())
}
