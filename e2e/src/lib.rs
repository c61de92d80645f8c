//! Real-guest test framework.
