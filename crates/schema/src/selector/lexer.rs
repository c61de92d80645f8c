//! Tokens of the label selector language.

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    Identifier(String),
    In,
    NotIn,
    Not,
    Equals,
    DoubleEquals,
    NotEquals,
    Greater,
    Less,
    Comma,
    Open,
    Close,
    End,
    /// Two operator characters that make no operator, such as `=!`.
    Bad(String),
}

impl Token {
    /// The token as it stood in the input, for error messages.
    pub(super) fn literal(&self) -> &str {
        match self {
            Token::Identifier(text) | Token::Bad(text) => text,
            Token::In => "in",
            Token::NotIn => "notin",
            Token::Not => "!",
            Token::Equals => "=",
            Token::DoubleEquals => "==",
            Token::NotEquals => "!=",
            Token::Greater => ">",
            Token::Less => "<",
            Token::Comma => ",",
            Token::Open => "(",
            Token::Close => ")",
            Token::End => "",
        }
    }
}

pub(super) fn tokens(text: &str) -> Vec<Token> {
    let mut out = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        let Some(first) = rest.chars().next() else {
            out.push(Token::End);
            return out;
        };
        let (token, used) = match first {
            '(' => (Token::Open, 1),
            ')' => (Token::Close, 1),
            ',' => (Token::Comma, 1),
            '>' => (Token::Greater, 1),
            '<' => (Token::Less, 1),
            '!' if rest.starts_with("!=") => (Token::NotEquals, 2),
            '!' => (Token::Not, 1),
            '=' if rest.starts_with("==") => (Token::DoubleEquals, 2),
            '=' if rest.starts_with("=!") => (Token::Bad("=!".to_owned()), 2),
            '=' => (Token::Equals, 1),
            _ => {
                let end = rest.find(|c: char| " \t\r\n=!(),><".contains(c)).unwrap_or(rest.len());
                let word = &rest[..end];
                let token = match word {
                    "in" => Token::In,
                    "notin" => Token::NotIn,
                    _ => Token::Identifier(word.to_owned()),
                };
                (token, end)
            }
        };
        out.push(token);
        rest = &rest[used..];
    }
}
