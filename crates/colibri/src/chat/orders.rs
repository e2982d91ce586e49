//! What a person may enter in a chat: a text for the model, or an order that begins with a slash. Knows the orders'
//! names, not what they do.
use super::lines::Entry;
use std::path::PathBuf;

/// How thinking is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Thinking {
    /// As it comes, dimmed.
    Show,
    /// One line that counts its tokens.
    Fold,
    /// Not at all.
    Hide,
}

/// An order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Lists the orders.
    Help,
    /// Adds a system message.
    System(String),
    /// Begins again.
    Reset,
    /// Another answer to the last turn.
    Retry,
    /// Figures.
    Stats,
    /// Writes the conversation into a file.
    Save(PathBuf),
    /// Goes on with one from a file.
    Load(PathBuf),
    /// Shows thinking in this way; None: folds or unfolds it.
    Think(Option<Thinking>),
    /// Ends the program.
    Quit,
}

/// What was entered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    /// Nothing.
    Blank,
    /// A text for the model.
    Text(String),
    /// Something for the program.
    Order(Order),
}

/// The orders as `/help` lists them, with what follows the name.
const ORDERS: [(&str, &str, &str); 9] = [
    ("/help", "", "this list"),
    ("/system", "TEXT", "a system message, in its place in the conversation"),
    ("/retry", "", "another answer to the last turn"),
    ("/reset", "", "forget the conversation and begin again"),
    ("/think", "[show|fold|hide]", "how thinking is shown; alone it folds or unfolds it"),
    ("/stats", "", "tokens, times, cache and memory"),
    ("/save", "FILE", "write the conversation, and its state beside it"),
    ("/load", "FILE", "go on with a conversation that was saved"),
    ("/quit", "", "end the program (so does Ctrl-D)"),
];

/// Names of all orders.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    ORDERS.iter().map(|(name, _, _)| *name)
}

/// The list that `/help` shows.
pub(crate) fn help() -> String {
    let lines = ORDERS.map(|(name, argument, what)| format!("{:<24} {what}\n", format!("{name} {argument}")));
    lines.concat()
        + "A line that ends in \\ goes on in the next one; \"\"\" opens and closes a block.\n\
           // begins a text with a slash. Ctrl-C stops an answer and keeps what was said."
}

/// Reads what was entered.
///
/// # Errors
/// For people: an order that is none, or one without what it needs.
pub(crate) fn read(entry: Entry) -> Result<Entered, String> {
    if entry.text.trim().is_empty() {
        return Ok(Entered::Blank);
    }
    if entry.block || !entry.text.starts_with('/') {
        return Ok(Entered::Text(entry.text));
    }
    if entry.text.starts_with("//") {
        return Ok(Entered::Text(entry.text[1..].to_owned()));
    }
    let (name, argument) = entry.text.split_once(char::is_whitespace).unwrap_or((&entry.text, ""));
    order(name, argument.trim()).map(Entered::Order)
}

fn order(name: &str, argument: &str) -> Result<Order, String> {
    let file = || match argument {
        "" => Err(format!("{name} needs a file: {name} FILE")),
        path => Ok(at_home(path)),
    };
    let order = match name {
        "/system" if argument.is_empty() => Err("/system needs a text: /system TEXT".into()),
        "/system" => return Ok(Order::System(argument.to_owned())),
        "/save" => return file().map(Order::Save),
        "/load" => return file().map(Order::Load),
        "/think" => return thinking(argument).map(Order::Think),
        "/help" => Ok(Order::Help),
        "/reset" => Ok(Order::Reset),
        "/retry" => Ok(Order::Retry),
        "/stats" => Ok(Order::Stats),
        "/quit" => Ok(Order::Quit),
        _ => Err(unknown(name)),
    }?;
    if argument.is_empty() {
        Ok(order)
    } else {
        Err(format!("{name} takes nothing after it: found `{argument}`"))
    }
}

/// A path; `~/` is the home directory, as in shells.
fn at_home(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), etcetera::home_dir()) {
        (Some(rest), Ok(home)) => home.join(rest),
        _ => PathBuf::from(path),
    }
}

fn thinking(argument: &str) -> Result<Option<Thinking>, String> {
    match argument {
        "" => Ok(None),
        "show" => Ok(Some(Thinking::Show)),
        "fold" => Ok(Some(Thinking::Fold)),
        "hide" => Ok(Some(Thinking::Hide)),
        _ => Err(format!("/think {argument}: expected show, fold or hide")),
    }
}

fn unknown(name: &str) -> String {
    let likeness = |known: &&str| strsim::jaro_winkler(name, known);
    let nearest = names().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    let meant = nearest.filter(|known| likeness(known) > 0.75);
    let meant = meant.map_or(String::new(), |known| format!(" ({known}?)"));
    format!("{name} is no order{meant}; /help lists them, and // begins a text with a slash")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_line(text: &str) -> Result<Entered, String> {
        read(Entry { text: text.into(), block: false })
    }

    #[test]
    fn orders_are_known_by_their_names() {
        for (text, wanted) in [
            ("/help", Order::Help),
            ("/system  Be short.\nAlways. ", Order::System("Be short.\nAlways.".into())),
            ("/save a b.json", Order::Save("a b.json".into())),
            ("/load x", Order::Load("x".into())),
            ("/load ~/x", Order::Load(etcetera::home_dir().unwrap().join("x"))),
            ("/think", Order::Think(None)),
            ("/think fold", Order::Think(Some(Thinking::Fold))),
            ("/quit ", Order::Quit),
        ] {
            assert_eq!(read_line(text), Ok(Entered::Order(wanted)), "{text}");
        }
        // Each one of the list is one.
        for name in names() {
            let read = read_line(&format!("{name} x")).map_err(|error| error.contains("no order"));
            assert_ne!(read, Err(true), "{name}");
            assert!(help().contains(name));
        }
    }

    #[test]
    fn what_is_no_order_is_refused_with_the_nearest() {
        for (text, words) in [
            ("/hlep", "/hlep is no order (/help?); /help lists them"),
            ("/rest", "(/reset?)"),
            ("/xyzzy", "/xyzzy is no order; /help"),
            ("/", "/ is no order"),
            ("/usr/bin", "// begins a text"),
            ("/save", "/save needs a file"),
            ("/system ", "/system needs a text"),
            ("/quit now", "takes nothing after it: found `now`"),
            ("/think loud", "expected show, fold or hide"),
        ] {
            let message = read_line(text).unwrap_err();
            assert!(message.contains(words), "{text}: {message}");
        }
    }

    #[test]
    fn the_rest_is_text_as_it_was_entered() {
        let text = |text: &str| Ok(Entered::Text(text.to_owned()));
        assert_eq!(read_line("//usr/bin"), text("/usr/bin"));
        assert_eq!(read_line(" /help"), text(" /help"));
        assert_eq!(read(Entry { text: "/help".into(), block: true }), text("/help"));
        assert_eq!(read_line(" \t"), Ok(Entered::Blank));
        assert_eq!(read(Entry { text: "\n".into(), block: true }), Ok(Entered::Blank));
    }

    #[test]
    fn the_list_fits_a_terminal() {
        assert!(help().lines().all(|line| line.chars().count() <= 80), "{}", help());
    }
}
