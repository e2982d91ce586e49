//! The elements of a call on their way to the JSON text of its arguments. It deliberately knows no tag.

use crate::json::{escape_into, without_spaces};

/// What was written of a call's arguments, as far as what follows depends on it.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    form: Form,
    /// The element that is open.
    value: Value,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Form {
    #[default]
    Nothing,
    /// An object, member by member.
    Members,
    /// Text that is not ours to write.
    Whole,
}

#[derive(Debug, Default)]
enum Value {
    /// No element is open, or one that cannot count.
    #[default]
    Dropped,
    /// Streams as the inside of a JSON string.
    String,
    /// Waits for its end.
    Other(String),
    /// Streams as it is.
    Raw,
}

impl Arguments {
    /// An `argument` element begins. One without a key is dropped, and one after a `json` element.
    pub(super) fn begin_argument(&mut self, key: Option<&str>, kind: Option<&str>) -> String {
        let (Some(key), Form::Nothing | Form::Members) = (key, &self.form) else { return String::new() };
        let mut text = if self.form == Form::Nothing { "{\"" } else { ",\"" }.to_owned();
        escape_into(&mut text, key);
        text.push_str("\":");
        self.form = Form::Members;
        if kind == Some("string") {
            text.push('"');
            self.value = Value::String;
        } else {
            self.value = Value::Other(String::new());
        }
        text
    }

    /// A `json` element begins. It is dropped after other elements.
    pub(super) fn begin_json(&mut self) -> String {
        if self.form == Form::Nothing {
            self.value = Value::Raw;
        }
        String::new()
    }

    /// Text in an element.
    pub(super) fn push(&mut self, text: &str) -> String {
        match &mut self.value {
            Value::Dropped => String::new(),
            Value::String => {
                let mut escaped = String::with_capacity(text.len());
                escape_into(&mut escaped, text);
                escaped
            }
            Value::Other(value) => {
                value.push_str(text);
                String::new()
            }
            Value::Raw => {
                self.form = Form::Whole;
                text.to_owned()
            }
        }
    }

    /// The element ends.
    pub(super) fn end_element(&mut self) -> String {
        match std::mem::take(&mut self.value) {
            Value::Dropped | Value::Raw => String::new(),
            Value::String => "\"".to_owned(),
            Value::Other(value) => without_spaces(&value).unwrap_or_else(|| {
                let mut string = "\"".to_owned();
                escape_into(&mut string, &value);
                string + "\""
            }),
        }
    }

    /// The call ends, its elements have ended.
    pub(super) fn end_call(&mut self) -> String {
        let rest = match self.form {
            Form::Nothing => "{}",
            Form::Members => "}",
            Form::Whole => "",
        };
        self.form = Form::Whole;
        rest.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::Arguments;

    #[test]
    fn elements_that_contradict_each_other_leave_json() {
        let mut arguments = Arguments::default();
        let mut text = arguments.begin_argument(None, Some("string"));
        text += &arguments.push("lost");
        text += &arguments.end_element();
        text += &arguments.begin_argument(Some("a"), None);
        text += &arguments.push(" [ 1 , 2 ] ");
        text += &arguments.end_element();
        text += &arguments.begin_json();
        text += &arguments.push("{}");
        text += &arguments.end_element();
        text += &arguments.begin_argument(Some("a\n"), Some("number"));
        text += &arguments.end_element();
        text += &arguments.end_call();
        assert_eq!(text, "{\"a\":[1,2],\"a\\n\":\"\"}");
    }

    #[test]
    fn a_whole_text_stays_as_it_is() {
        let mut arguments = Arguments::default();
        let mut text = arguments.begin_json();
        text += &arguments.push("{ \"a\" : ");
        text += &arguments.push("1 }");
        text += &arguments.end_element();
        text += &arguments.begin_argument(Some("b"), Some("string"));
        text += &arguments.push("lost");
        text += &arguments.end_element();
        text += &arguments.end_call();
        assert_eq!(text, "{ \"a\" : 1 }");
    }
}
