//! Bytes that nobody meant. Whatever they are, nothing panics, nothing hangs, and the server goes on.

mod mutation;
mod parsers;
mod wire;
