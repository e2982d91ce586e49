//! Reading a `config.json`: every key is asked for by name and range, so that an error can say what was wrong.
use serde_json::{Map, Value};

/// What is wrong with a config.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A key that the model cannot be built without.
    #[error(
        "config.json: `{key}` is missing; {expected} is required: is this the model's whole config.json?"
    )]
    Missing {
        /// Its full name.
        key: String,
        /// What it should be.
        expected: String,
    },
    /// A key with a value of another type or outside its range.
    #[error("config.json: `{key}` is {found}; expected {expected}")]
    Invalid {
        /// Its full name.
        key: String,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// A value that is valid but means something that is not computed here.
    #[error("config.json: `{key}` = {found} is not supported; supported: {supported}")]
    Unsupported {
        /// Its full name.
        key: String,
        /// What it is.
        found: String,
        /// What would run.
        supported: String,
    },
    /// Layer lists that leave a layer out or name one twice.
    #[error(
        "config.json: `{key}` must name each of the layers 1 to {layers} once in one of its lists: {found}"
    )]
    Layers {
        /// Its full name.
        key: String,
        /// How many layers there are.
        layers: u32,
        /// The first layer that is wrong, and how.
        found: String,
    },
    /// A family that is not built in.
    #[error("config.json: model_type `{found}` is not a family that runs here; these are: {known}")]
    UnknownFamily {
        /// What it says.
        found: String,
        /// What there is.
        known: String,
    },
}

/// An object of the config and the path to it.
#[derive(Clone, Copy)]
pub struct Keys<'a> {
    map: &'a Map<String, Value>,
    path: &'a str,
}

impl<'a> Keys<'a> {
    /// The object at the top.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] if it is none.
    pub fn new(value: &'a Value, path: &'a str) -> Result<Self, ConfigError> {
        let map = value.as_object().ok_or_else(|| ConfigError::Invalid {
            key: path.into(),
            expected: "an object".into(),
            found: shown(value),
        })?;
        Ok(Keys { map, path })
    }

    /// The full name of a key.
    #[must_use]
    pub fn name(&self, key: &str) -> String {
        if self.path.is_empty() { key.into() } else { format!("{}.{key}", self.path) }
    }

    /// The value of a key; null counts as absent.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    /// An object inside, under its full name.
    ///
    /// # Errors
    /// Missing or no object.
    pub fn object(&self, key: &str, path: &'a str) -> Result<Keys<'a>, ConfigError> {
        Keys::new(self.need(key, "an object")?, path)
    }

    fn need(&self, key: &str, expected: &str) -> Result<&'a Value, ConfigError> {
        self.get(key).ok_or_else(|| ConfigError::Missing { key: self.name(key), expected: expected.into() })
    }

    fn invalid<T>(&self, key: &str, expected: &str, found: &Value) -> Result<T, ConfigError> {
        Err(ConfigError::Invalid { key: self.name(key), expected: expected.into(), found: shown(found) })
    }

    /// A whole number from `least` to `most`.
    ///
    /// # Errors
    /// Missing, of another type, or outside.
    pub fn number(&self, key: &str, least: u32, most: u32) -> Result<u32, ConfigError> {
        let expected = format!("a whole number from {least} to {most}");
        let value = self.need(key, &expected)?;
        match value.as_u64().and_then(|n| u32::try_from(n).ok()) {
            Some(n) if (least..=most).contains(&n) => Ok(n),
            _ => self.invalid(key, &expected, value),
        }
    }

    /// A finite number in the open range.
    ///
    /// # Errors
    /// Missing, of another type, or outside.
    pub fn float(&self, key: &str, above: f32, below: f32) -> Result<f32, ConfigError> {
        let expected = format!("a number between {above} and {below}");
        let value = self.need(key, &expected)?;
        match value.as_f64().map(|n| n as f32) {
            Some(n) if n > above && n < below => Ok(n),
            _ => self.invalid(key, &expected, value),
        }
    }

    /// True or false, with a value for an absent key.
    ///
    /// # Errors
    /// Of another type.
    pub fn flag(&self, key: &str, default: bool) -> Result<bool, ConfigError> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(*b),
            Some(other) => self.invalid(key, "true or false", other),
        }
    }

    /// True or false, without a default.
    ///
    /// # Errors
    /// Missing or of another type.
    pub fn needed_flag(&self, key: &str) -> Result<bool, ConfigError> {
        let value = self.need(key, "true or false")?;
        value.as_bool().map_or_else(|| self.invalid(key, "true or false", value), Ok)
    }

    /// A word.
    ///
    /// # Errors
    /// Missing or of another type.
    pub fn word(&self, key: &str) -> Result<&'a str, ConfigError> {
        let value = self.need(key, "a string")?;
        value.as_str().map_or_else(|| self.invalid(key, "a string", value), Ok)
    }

    /// A list of whole numbers.
    ///
    /// # Errors
    /// Missing or of another type.
    pub fn numbers(&self, key: &str) -> Result<Vec<u32>, ConfigError> {
        let value = self.need(key, "a list of whole numbers")?;
        let list = value.as_array().and_then(|l| {
            l.iter().map(|v| v.as_u64().and_then(|n| u32::try_from(n).ok())).collect::<Option<Vec<_>>>()
        });
        list.map_or_else(|| self.invalid(key, "a list of whole numbers", value), Ok)
    }

    /// A key that, if present, must have this value: another one means something that is not computed here.
    ///
    /// # Errors
    /// [`ConfigError::Unsupported`].
    pub fn only(&self, key: &str, supported: &Value) -> Result<(), ConfigError> {
        match self.get(key) {
            Some(value) if !same(value, supported) => Err(ConfigError::Unsupported {
                key: self.name(key),
                found: shown(value),
                supported: shown(supported),
            }),
            _ => Ok(()),
        }
    }
}

/// Equal, numbers by value (1 and 1.0).
fn same(a: &Value, b: &Value) -> bool {
    a == b || a.as_f64().is_some_and(|a| b.as_f64() == Some(a))
}

/// A value for a message, not longer than a line.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    let short: String = text.chars().take(80).collect();
    if short.len() < text.len() { format!("{short}...") } else { text }
}
