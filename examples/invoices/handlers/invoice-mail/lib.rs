//! Sends an invoice through a mail provider, once: an attempt that dies after the provider took the mail is followed by one with the
//! same idempotency key, and the provider knows it.

use piecework_handler::prelude::*;

#[derive(Serialize, Deserialize)]
struct Mail {
    invoice: u64,
    to: String,
    text: String,
}

fn run(job: Job, mail: Mail) -> Result<()> {
    if checkpoint::load::<bool>("sent")?.is_some() {
        return Ok(());
    }
    let provider = config::get("provider").ok_or_else(|| {
        Error::discard("`provider` is missing under [plugins.invoice-mail.config]")
    })?;
    let answer = http::post(provider)
        .header("idempotency-key", &job.idempotency_key)
        .json(&mail)?
        .send()?;
    match answer.status {
        200..=299 => {}
        429 => {
            let wait = answer
                .header("retry-after")
                .and_then(|wait| wait.parse().ok());
            return Err(Error::retry_after(
                wait.unwrap_or(1),
                "the provider has enough for now",
            ));
        }
        400..=499 => {
            return Err(Error::discard(format!(
                "the provider refuses the mail: {}",
                answer.text()
            )));
        }
        status => return Err(Error::retry(format!("the provider answered {status}"))),
    }
    // For an attempt that is lost between here and the end: it does not even ask again.
    checkpoint::save("sent", &true)?;
    Ok(())
}

piecework_handler::handler!(run);
