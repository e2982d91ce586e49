//! Conversations with the tiny model: ids only grow, nothing is computed twice, and whatever stops a turn leaves a
//! conversation that can go on.
use super::conversation::{Conversation, Ending, Manner, News, Reply};
use super::record::Record;
use super::saved::{self, Chat, Options};
use super::speaker::room_for_two;
use super::voice::Voice;
use crate::errors::Failure;
use crate::{embedded, seeds_of_tests as seeds};
use engine::plan::Request;
use engine::{Engine, Limits, Sampling, Streaming};
use memory::CacheSize;
use models::{Family, LoadOptions};
use ops::{Activations, Oracle};
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use store::Reader;
use text::chat::{ChatOptions, Effort, Message, Role};
use text::{StopStrings, Tiktoken, Tokenizer as _};

/// Reads that fail while the flag is set.
struct Breakable {
    inner: Arc<dyn Reader>,
    broken: Arc<AtomicBool>,
}

impl Reader for Breakable {
    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        if self.broken.load(Ordering::SeqCst) {
            return Err(io::Error::other("the drive is gone"));
        }
        self.inner.read_at(file, offset, into)
    }

    fn file_name(&self, file: u32) -> String {
        self.inner.file_name(file)
    }
}

/// The tiny model, ready to speak.
struct Bench {
    engine: Engine,
    conversation: Conversation,
    /// Breaks reads of experts while it is set.
    broken: Arc<AtomicBool>,
    sampling: Sampling,
    stop: StopStrings,
    max_tokens: u32,
}

/// How the model is asked to think.
fn thinking(effort: Option<Effort>) -> ChatOptions {
    ChatOptions { thinking: effort.is_some(), effort, ..ChatOptions::default() }
}

impl Bench {
    fn new(options: ChatOptions, sequences: u32, context: u32) -> Self {
        let checkpoint = embedded::open().unwrap();
        let family = Family::recognise(&checkpoint).unwrap();
        let request = Request {
            options: LoadOptions { activations: Activations::Exact, ..LoadOptions::default() },
            dense: None,
            context: Some(context),
            sequences,
            chunk: Some(16),
            expert_cache: Some("16x".parse::<CacheSize>().unwrap()),
            copies: 1,
        };
        let plan = engine::plan(&checkpoint, &family, &request, Limits::of_machine().unwrap()).unwrap();
        let broken = Arc::new(AtomicBool::new(false));
        let reader = Breakable { inner: Arc::new(checkpoint.files()), broken: broken.clone() };
        let device = Box::new(Oracle::new(2).unwrap());
        let engine = Engine::load(
            &checkpoint,
            &family,
            plan,
            device,
            Streaming::new(Arc::new(reader), 2),
            &mut |_| {},
        )
        .unwrap();
        let conversation = Conversation::new(voice(&family, options));
        Bench {
            engine,
            conversation,
            broken,
            sampling: Sampling::greedy(),
            stop: StopStrings::default(),
            max_tokens: 4096,
        }
    }

    /// Asks; `on_news` may set the flag that stops the turn.
    fn ask_with(
        &mut self,
        text: Option<&str>,
        on_news: &mut dyn FnMut(&News<'_>, &AtomicBool),
    ) -> Result<Option<Reply>, String> {
        let cancel = AtomicBool::new(false);
        let manner = Manner {
            sampling: self.sampling.clone(),
            max_tokens: self.max_tokens,
            stop: self.stop.clone(),
            cancel: &cancel,
        };
        let mut news = |news: News<'_>| {
            on_news(&news, &cancel);
            ControlFlow::Continue(())
        };
        let outcome = match text {
            Some(text) => self.conversation.ask(&mut self.engine, text, &manner, &mut news),
            None => self.conversation.retry(&mut self.engine, &manner, &mut news),
        };
        outcome.map_err(|failure| failure.message())
    }

    fn ask(&mut self, text: &str) -> Reply {
        self.ask_with(Some(text), &mut |_, _| {}).unwrap().unwrap()
    }

    fn retry(&mut self) -> Reply {
        self.ask_with(None, &mut |_, _| {}).unwrap().unwrap()
    }

    /// Stops the answer when so many tokens have come.
    fn ask_and_stop(&mut self, text: &str, tokens: usize) -> Reply {
        let mut heard = 0;
        let stop = &mut |news: &News<'_>, cancel: &AtomicBool| {
            heard += usize::from(matches!(news, News::Said(_)));
            cancel.store(heard == tokens, Ordering::SeqCst);
        };
        self.ask_with(Some(text), stop).unwrap().unwrap()
    }

    fn record(&self) -> &Record {
        self.conversation.record()
    }

    fn computed(&self) -> usize {
        self.conversation.state().map_or(0, |state| state.ids().len())
    }

    /// Ids of all messages, rendered anew.
    fn rendered(&self) -> Vec<u32> {
        self.conversation.voice().ids(&self.record().messages, 0, false).unwrap()
    }

    fn save(&mut self, file: &Path, with_state: bool) {
        let voice = self.conversation.voice();
        let chat = Chat {
            model: voice.model().clone(),
            options: Options::from(&voice.options),
            record: self.record().clone(),
        };
        let state = self.conversation.state().filter(|_| with_state);
        let state = state.map(|state| state.save(&mut self.engine).unwrap());
        saved::save(file, &[], chat, state.as_deref()).unwrap();
    }

    /// Goes on with a saved conversation; why its state is of no use.
    fn load(&mut self, file: &Path) -> Option<String> {
        let chat = self.read(file).unwrap();
        let state = saved::load_state(file, u64::MAX).unwrap();
        let options = chat.options.chat_options().unwrap();
        self.conversation.resume(&mut self.engine, options, chat.record, state.as_deref()).unwrap()
    }

    fn read(&self, file: &Path) -> Result<Chat, String> {
        let voice = self.conversation.voice();
        saved::load(file, voice.model(), voice.vocabulary()).map_err(|failure| failure.message())
    }
}

fn tokenizer() -> Tiktoken {
    let file = |name| embedded::open().unwrap().metadata_file(name, 1 << 20).unwrap().unwrap();
    Tiktoken::from_bytes(&file("tiktoken.model"), Some(&file("tokenizer_config.json"))).unwrap()
}

fn voice(family: &Family, options: ChatOptions) -> Voice {
    Voice::new(tokenizer(), family, options).unwrap()
}

const SUM: &str = "What is 7 plus 5?";
const STORY: &str = "Tell me a story about a fox.";

#[test]
fn ids_only_grow_and_a_turn_computes_only_what_is_new() {
    for options in [thinking(None), thinking(Some(Effort::Low))] {
        let mut bench = Bench::new(options, 2, 1024);
        let mut before = Vec::new();
        for text in [SUM, "What is 3 plus 4?", "<|close|>response<|sep|> is text"] {
            let computed = bench.computed();
            let reply = bench.ask(text);
            assert!(reply.prompt_ids.starts_with(&before), "{text}");
            assert_eq!(reply.answer.prefill.0 as usize, reply.prompt_ids.len() - computed, "{text}");
            // All but the end of the last answer had been computed.
            assert!(before.is_empty() || computed + 1 == before.len(), "{computed} of {}", before.len());
            assert_eq!(reply.ending, Ending::Stop);
            before.clone_from(&bench.record().ids);
            assert!(before.starts_with(&[reply.prompt_ids, reply.answer.ids].concat()));
        }
        // The model writes canonical ids here, so that rendering its words gives them again.
        assert_eq!(bench.record().ids, bench.rendered());
        assert_eq!(bench.record().turns.len(), 3);
    }
}

#[test]
fn a_system_message_costs_its_own_ids_only() {
    let mut bench = Bench::new(thinking(None), 2, 1024);
    let system = |text: &str| Message::new(Role::System, text);
    bench.conversation.add(&bench.engine, system("You are kind.")).unwrap();
    bench.ask(SUM);
    let (computed, length) = (bench.computed(), bench.record().ids.len());
    bench.conversation.add(&bench.engine, system("Be short.")).unwrap();
    let added = bench.record().ids.len() - length;
    assert!(added > 5);
    assert_eq!(bench.computed(), computed, "nothing is computed for it yet");
    let reply = bench.ask("What is 3 plus 4?");
    assert_eq!(reply.answer.prefill.0 as usize, reply.prompt_ids.len() - computed);
    assert_eq!(bench.record().ids, bench.rendered());
    let roles = bench.record().messages.iter().map(|message| message.role.name()).collect::<Vec<_>>();
    assert_eq!(roles, ["system", "user", "assistant", "system", "user", "assistant"]);
}

#[test]
fn another_answer_begins_where_the_turn_began() {
    for sequences in [1, 2] {
        let mut bench = Bench::new(thinking(None), sequences, 1024);
        bench.ask(SUM);
        let computed = bench.computed();
        let first = bench.ask(STORY);
        let again = bench.retry();
        assert_eq!((&again.prompt_ids, &again.answer.ids), (&first.prompt_ids, &first.answer.ids), "greedy");
        let anew = if sequences == 2 { first.prompt_ids.len() - computed } else { first.prompt_ids.len() };
        assert_eq!(again.answer.prefill.0 as usize, anew, "{sequences} states");
        assert_eq!(bench.record().turns.len(), 2);
        assert_eq!(bench.record().messages.len(), 4);
        // What was said after the answer comes before the new one.
        bench.conversation.add(&bench.engine, Message::new(Role::System, "Tell of a dog.")).unwrap();
        bench.max_tokens = 4;
        bench.sampling = Sampling { seed: 1, ..Sampling::default() };
        let one = bench.retry();
        assert_eq!(one.ending, Ending::Length);
        let roles =
            bench.record().messages[2..].iter().map(|message| message.role.name()).collect::<Vec<_>>();
        assert_eq!(roles, ["user", "system", "assistant"]);
        bench.max_tokens = 40;
        let draws = |bench: &mut Bench, seed| {
            bench.sampling = Sampling { seed, ..Sampling::default() };
            bench.retry().answer.ids
        };
        let one = draws(&mut bench, 1);
        assert_ne!(one, draws(&mut bench, 2));
        assert_eq!(one, draws(&mut bench, 1));
    }
}

#[test]
fn without_an_answer_there_is_no_other_one() {
    let mut bench = Bench::new(thinking(None), 2, 256);
    let refused = bench.ask_with(None, &mut |_, _| {}).unwrap_err();
    assert!(refused.contains("no answer yet"), "{refused}");
    bench.ask(SUM);
    bench.conversation.reset(thinking(None));
    assert!(bench.ask_with(None, &mut |_, _| {}).is_err());
    // The same words again are the same conversation.
    let reply = bench.ask(SUM);
    assert_eq!(reply.answer.prefill.0 as usize, reply.prompt_ids.len());
}

/// At every token: what was said stays, its elements are closed, and the next turn sees all of it.
#[test]
fn an_answer_can_be_stopped_at_every_token() {
    for options in [thinking(None), thinking(Some(Effort::Low))] {
        let mut bench = Bench::new(options.clone(), 2, 1024);
        bench.max_tokens = 60;
        let whole = bench.ask(SUM);
        for tokens in 1..whole.answer.ids.len() {
            bench.conversation.reset(options.clone());
            bench.max_tokens = 60;
            let reply = bench.ask_and_stop(SUM, tokens);
            assert_eq!(reply.answer.ids, whole.answer.ids[..tokens]);
            assert_eq!(reply.ending, Ending::Cancelled);
            let record = bench.record().clone();
            assert_eq!(record.ids, bench.rendered(), "stopped after {tokens}");
            let computed = bench.computed();
            assert_eq!(computed, reply.prompt_ids.len() + tokens - 1, "the last one is not fed yet");
            bench.max_tokens = 2;
            let next = bench.ask("And 3 plus 4?");
            assert!(next.prompt_ids.starts_with(&record.ids));
            assert_eq!(next.answer.prefill.0 as usize, next.prompt_ids.len() - computed);
        }
    }
}

/// While the prompt is read: nothing has happened, and the next turn costs what it would have cost.
#[test]
fn a_prompt_can_be_given_up_at_every_chunk() {
    let long = format!("Say nothing of this: {}", "once upon a time ".repeat(12));
    for sequences in [1, 2] {
        let mut bench = Bench::new(thinking(None), sequences, 1024);
        bench.ask(SUM);
        let (record, computed) = (bench.record().clone(), bench.computed());
        for chunk in 1..4 {
            let mut seen = 0;
            let stop = &mut |news: &News<'_>, cancel: &AtomicBool| {
                seen += usize::from(matches!(news, News::Read(..)));
                cancel.store(seen >= chunk, Ordering::SeqCst);
            };
            assert!(bench.ask_with(Some(&long), stop).unwrap().is_none());
            assert_eq!(*bench.record(), record);
            assert_eq!(bench.computed(), if sequences == 2 { computed } else { 0 });
        }
        let next = bench.ask("What is 3 plus 4?");
        let anew = if sequences == 2 { computed } else { 0 };
        assert_eq!(next.answer.prefill.0 as usize, next.prompt_ids.len() - anew);
        assert_eq!(bench.record().ids, bench.rendered());
        // Another answer is given up too: the one before it stays.
        let record = bench.record().clone();
        let stop = &mut |_: &News<'_>, cancel: &AtomicBool| cancel.store(true, Ordering::SeqCst);
        assert!(bench.ask_with(None, stop).unwrap().is_none());
        assert_eq!(*bench.record(), record);
        assert!(bench.ask(SUM).prompt_ids.starts_with(&record.ids));
    }
}

#[test]
fn a_turn_that_fails_has_not_happened() {
    for sequences in [1, 2] {
        let mut bench = Bench::new(thinking(None), sequences, 1024);
        bench.ask(SUM);
        let record = bench.record().clone();
        for fail_at in [1, 30] {
            let (mut heard, broken) = (0, bench.broken.clone());
            let fail = &mut |_: &News<'_>, _: &AtomicBool| {
                heard += 1;
                broken.store(heard >= fail_at, Ordering::SeqCst);
            };
            let error = bench.ask_with(Some(STORY), fail).unwrap_err();
            assert!(error.contains("the drive is gone"), "{error}");
            bench.broken.store(false, Ordering::SeqCst);
            assert_eq!(*bench.record(), record);
        }
        let next = bench.ask("What is 3 plus 4?");
        assert!(next.prompt_ids.starts_with(&record.ids));
        assert_eq!(bench.record().ids, bench.rendered());
    }
}

#[test]
fn a_full_context_is_said_and_nothing_is_cut() {
    let mut bench = Bench::new(thinking(None), 2, 64);
    let reply = bench.ask(STORY);
    assert_eq!(reply.ending, Ending::Context);
    assert_eq!(reply.prompt_ids.len() + reply.answer.ids.len(), 64);
    let record = bench.record().clone();
    let refused = bench.ask_with(Some("More."), &mut |_, _| {}).unwrap_err();
    for words in ["the context is full", "64 fit", "/reset", "--context, up to 4096"] {
        assert!(refused.contains(words), "{words}: {refused}");
    }
    assert_eq!(*bench.record(), record);
    let system = Message::new(Role::System, "Be short.");
    assert!(bench.conversation.add(&bench.engine, system).is_err());
    assert_eq!(*bench.record(), record);
    bench.conversation.reset(thinking(None));
    assert_eq!(bench.ask(SUM).ending, Ending::Stop);
}

/// Where memory is short, the second state goes first.
#[test]
fn a_state_to_go_back_to_costs_neither_context_nor_bits() {
    let checkpoint = embedded::open().unwrap();
    let family = Family::recognise(&checkpoint).unwrap();
    let plan = |sequences, context, available| {
        let request = Request {
            options: LoadOptions::default(),
            dense: None,
            context,
            sequences,
            chunk: Some(16),
            expert_cache: Some("8x".parse::<CacheSize>().unwrap()),
            copies: 1,
        };
        let limits = Limits { total: 1 << 32, available };
        engine::plan(&checkpoint, &family, &request, limits).map_err(Failure::from)
    };
    let reserve = Limits { total: 1 << 32, available: 0 }.reserve();
    // A plan is tried with tables for all experts; a state takes far more.
    let slack = 64 << 10;
    let bytes = |sequences, context| plan(sequences, context, 1 << 32).unwrap().bytes() + reserve + slack;
    let room = |context: Option<u32>, available| {
        room_for_two(|sequences| plan(sequences, context, available)).unwrap()
    };
    for context in [None, Some(2048)] {
        assert!(room(context, bytes(2, context)));
        assert!(!room(context, bytes(1, context)), "{context:?}: one fits as it is");
    }
    // Two would fit, but with packed weights or less context.
    for context in [None, Some(2048)] {
        let (one, two) = [1, 2].map(|states| plan(states, context, bytes(1, context)).unwrap()).into();
        assert!(one.context > two.context || one.options.dense != two.options.dense);
    }
    let too_long = room_for_two(|sequences| plan(sequences, Some(5000), 1 << 32)).unwrap_err();
    assert!(too_long.message().contains("--context"), "{}", too_long.message());
}

#[test]
fn a_stop_string_ends_an_answer_and_the_conversation_goes_on() {
    let mut bench = Bench::new(thinking(None), 2, 1024);
    bench.stop = StopStrings::new(vec![" 5 is".to_owned()]).unwrap();
    let reply = bench.ask(SUM);
    assert_eq!((reply.ending, reply.said.content.as_deref()), (Ending::Stop, Some("7 plus")));
    let ids = bench.record().ids.clone();
    assert!(ids.starts_with(&[&reply.prompt_ids[..], &reply.answer.ids].concat()), "what it said stays");
    let closing = bench.conversation.voice().tokenizer().decode(&ids[ids.len() - 6..]).unwrap();
    assert!(closing.ends_with("<|close|>message<|sep|><|end_of_msg|>"), "{closing}");
    bench.stop = StopStrings::default();
    let next = bench.ask("What is 3 plus 4?");
    assert!(next.prompt_ids.starts_with(&ids));
    assert_eq!(next.said.content.as_deref(), Some("3 plus 4 is 7."));
}

#[test]
fn a_saved_conversation_goes_on_as_if_it_had_not_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("chat.json");
    let mut bench = Bench::new(thinking(Some(Effort::High)), 2, 1024);
    bench.ask(SUM);
    bench.save(&file, true);
    let computed = bench.computed();
    let going_on = bench.ask(STORY);
    for (sequences, with_state) in [(2, true), (1, true), (2, false)] {
        if !with_state {
            std::fs::remove_file(saved::state_path(&file)).unwrap();
        }
        // What the flags say of thinking gives way to the file.
        let mut other = Bench::new(thinking(None), sequences, 1024);
        other.ask("What is 1 plus 1?");
        assert_eq!(other.load(&file), None);
        assert_eq!(other.computed(), if with_state { computed } else { 0 });
        let next = other.ask(STORY);
        assert_eq!((&next.prompt_ids, &next.answer.ids), (&going_on.prompt_ids, &going_on.answer.ids));
        assert_eq!(
            next.answer.prefill.0 as usize,
            next.prompt_ids.len() - if with_state { computed } else { 0 }
        );
        assert_eq!(*other.record(), *bench.record());
    }
}

#[test]
fn a_foreign_state_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (folder.path().join("one"), folder.path().join("other"));
    let mut bench = Bench::new(thinking(None), 2, 1024);
    bench.ask(SUM);
    bench.save(&one, true);
    bench.conversation.reset(thinking(None));
    bench.ask("What is 3 plus 4?");
    bench.save(&other, true);
    std::fs::copy(saved::state_path(&one), saved::state_path(&other)).unwrap();
    assert_eq!(bench.load(&other).unwrap(), "it is the state of another conversation");
    assert_eq!(bench.computed(), 0);
    std::fs::write(saved::state_path(&other), "no state").unwrap();
    let fault = bench.load(&other).unwrap();
    assert!(fault.contains("not a usable saved session"), "{fault}");
    bench.max_tokens = 4;
    assert_eq!(bench.ask(SUM).ending, Ending::Length, "it goes on all the same");
}

#[test]
fn what_is_no_saved_chat_is_refused_and_never_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("chat");
    let mut bench = Bench::new(thinking(None), 2, 256);
    bench.ask(SUM);
    bench.save(&file, true);
    let text = std::fs::read_to_string(&file).unwrap();
    // A saved chat gives way to a newer one.
    bench.save(&file, true);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    for (content, words) in [
        ("{}", "`format` is null"),
        ("once upon a time", "no saved chat, or damaged"),
        (&text[..text.len() / 2], "no saved chat, or damaged"),
        (&text.replace("\"version\":1", "\"version\":2"), "`version` is 2, this program reads 1"),
        (&text.replace("7 plus 5", "7 plus 6"), "the checksum does not fit"),
    ] {
        std::fs::write(&file, content).unwrap();
        let refused = bench.read(&file).unwrap_err();
        assert!(refused.contains(words) && refused.contains(file.to_str().unwrap()), "{words}: {refused}");
    }
    for (content, name) in [("my diary", "chat"), ("my diary", "chat.state")] {
        std::fs::write(&file, &text).unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        let model = bench.conversation.voice().model().clone();
        let chat = Chat {
            model,
            options: Options { thinking: false, effort: None },
            record: bench.record().clone(),
        };
        let state = bench.conversation.state().unwrap().save(&mut bench.engine).unwrap();
        let refused = saved::save(&file, &[], chat, Some(&state)).unwrap_err().message();
        assert!(refused.contains("exists and is no saved"), "{refused}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
    }
}

#[test]
fn another_models_conversation_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("chat");
    let mut bench = Bench::new(thinking(None), 2, 256);
    bench.ask(SUM);
    bench.save(&file, false);
    let voice = bench.conversation.voice();
    let mut model = voice.model().clone();
    model.tokenizer = "other".into();
    let refused = saved::load(&file, &model, voice.vocabulary()).unwrap_err().message();
    assert!(refused.contains("held with another model (its tokenizer differs)"), "{refused}");
    model.family = "other".into();
    let refused = saved::load(&file, &model, voice.vocabulary()).unwrap_err().message();
    assert!(refused.contains("held with another model (a kimi_k3)"), "{refused}");
}

/// However the files are damaged, a conversation is refused or the same, and a state of no use or the same.
#[test]
fn damaged_files_are_refused_or_worth_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("chat");
    let mut bench = Bench::new(thinking(None), 2, 256);
    bench.ask(SUM);
    bench.save(&file, true);
    let good = bench.read(&file).unwrap();
    let state = std::fs::read(saved::state_path(&file)).unwrap();
    let text = std::fs::read(&file).unwrap();
    let mut refused = 0;
    for seed in seeds::seeds(300) {
        let mut random = seeds::Random(seed);
        std::fs::write(&file, damaged(&text, &mut random)).unwrap();
        match bench.read(&file) {
            Ok(chat) => assert!(chat == good, "seed {seed}"),
            Err(_) => refused += 1,
        }
        if seed % 30 == 0 {
            std::fs::write(&file, &text).unwrap();
            let bytes = damaged(&state, &mut random);
            std::fs::write(saved::state_path(&file), &bytes).unwrap();
            assert_eq!(bench.load(&file).is_none(), bytes == state, "seed {seed}");
            assert_eq!(bench.computed(), if bytes == state { good.record.ids.len() - 1 } else { 0 });
        }
    }
    assert!(refused > 250, "{refused}");
}

fn damaged(bytes: &[u8], random: &mut seeds::Random) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    match random.below(4) {
        0 => bytes.truncate(random.below(bytes.len())),
        1 => bytes.insert(random.below(bytes.len()), random.next() as u8),
        _ => {
            let place = random.below(bytes.len());
            bytes[place] ^= 1 << random.below(8);
        }
    }
    bytes
}

#[test]
fn a_tokenizer_without_the_formats_tokens_cannot_chat() {
    let config = embedded::open().unwrap().metadata_file("tokenizer_config.json", 1 << 20).unwrap().unwrap();
    let config =
        String::from_utf8(config).unwrap().replace("<|sep|>", "<|tab|>").replace("<|open|>", "<|ajar|>");
    let ranks = embedded::open().unwrap().metadata_file("tiktoken.model", 1 << 20).unwrap().unwrap();
    let tokenizer = Tiktoken::from_bytes(&ranks, Some(config.as_bytes())).unwrap();
    assert!(tokenizer.special("<|ajar|>").is_some());
    let family = Family::recognise(&embedded::open().unwrap()).unwrap();
    let refused = Voice::new(tokenizer, &family, thinking(None)).err().unwrap().message();
    assert!(refused.contains("names no <|open|>, <|sep|>"), "{refused}");
}
