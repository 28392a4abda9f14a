//! Tests against real servers: a real llama.cpp server and a real Ollama with a real small model, started by the tests.
//! `scripts/test` installs them and says where they are; without them these tests fail, they are never skipped.
