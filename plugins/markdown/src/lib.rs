//! Turns Markdown into HTML, counts the words and finds the title.
//!
//! Raw HTML in the text is kept, as CommonMark says: a page that shows other people's text has to clean it first.

use piecework::handler::types::Disposition;
use pulldown_cmark::{Event, Options, Parser, TagEnd, html};
use serde::{Deserialize, Serialize};

wit_bindgen::generate!({ path: "../../wit", world: "handler", generate_all });

#[derive(Deserialize)]
struct Payload {
    markdown: String,
}

#[derive(Serialize)]
struct Page {
    html: String,
    words: usize,
    title: Option<String>,
}

struct Markdown;

impl Guest for Markdown {
    fn run(job: Job) -> Result<Option<String>, Failure> {
        let payload: Payload = serde_json::from_str(&job.payload).map_err(|error| {
            discard(format!(
                "the payload must be like {{\"markdown\": \"# Title\"}}: {error}"
            ))
        })?;
        serde_json::to_string(&render(&payload.markdown))
            .map(Some)
            .map_err(|error| discard(format!("the page cannot be written as JSON: {error}")))
    }
}

export!(Markdown);

/// No retry ever helps here: the same text gives the same page.
fn discard(message: String) -> Failure {
    Failure {
        message,
        disposition: Disposition::Discard,
    }
}

fn render(markdown: &str) -> Page {
    let options = Options::ENABLE_TABLES
        | Options::ENABLE_STRIKETHROUGH
        | Options::ENABLE_TASKLISTS
        | Options::ENABLE_FOOTNOTES;
    let mut text = String::new();
    let mut heading_from = None;
    let mut title = None;
    let events = Parser::new_ext(markdown, options).inspect(|event| match event {
        Event::Text(part) | Event::Code(part) => text.push_str(part),
        Event::SoftBreak | Event::HardBreak => text.push(' '),
        Event::Start(pulldown_cmark::Tag::Heading { .. }) => heading_from = Some(text.len()),
        Event::End(tag) => {
            if let (TagEnd::Heading(_), Some(from), None) = (tag, heading_from, &title) {
                title = Some(text[from..].trim().to_owned());
            }
            if !within_a_word(tag) {
                text.push('\n');
            }
        }
        _ => {}
    });
    let mut html = String::with_capacity(markdown.len() * 3 / 2);
    html::push_html(&mut html, events);
    Page {
        html,
        words: text.split_whitespace().count(),
        title,
    }
}

/// `un**believ**able` is one word, so the end of these must not part it.
fn within_a_word(tag: &TagEnd) -> bool {
    matches!(
        tag,
        TagEnd::Emphasis | TagEnd::Strong | TagEnd::Strikethrough | TagEnd::Link
    )
}
