//! Macros that our parser takes for ordinary calls, as the loops that they are in kube-apiserver.

use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, Expr, IdedExpr, ListExpr, LiteralValue, MapExpr, operators as op,
};

use super::estimate::GATHERED;

const SORTED: &str = "@__sortBy_input__";

/// None for what is a call.
pub fn expand(made: &CallExpr) -> Option<IdedExpr> {
    let target = made.target.as_deref()?.clone();
    let (name, args) = (made.func_name.as_str(), made.args.as_slice());
    if let ("sortBy", [variable, key]) = (name, args) {
        let mapped = push(list(vec![key.clone()]));
        let keys =
            around(ident(SORTED), [word(variable)?, String::new()], list(Vec::new()), yes(true), mapped, gathered());
        let sorted = CallExpr {
            func_name: "@sortByAssociatedKeys".to_owned(),
            target: Some(Box::new(ident(SORTED))),
            args: vec![keys],
        };
        return Some(bind(SORTED, target, tree(Expr::Call(sorted))));
    }
    let [first, second, rest @ ..] = args else { return None };
    let names = || Some([word(first)?, word(second)?]);
    let filtered = |step: IdedExpr, filter: Option<&IdedExpr>| match filter {
        Some(filter) => call(op::CONDITIONAL, vec![filter.clone(), step, gathered()]),
        None => step,
    };
    Some(match (name, rest) {
        ("all", [one]) => {
            let step = call(op::LOGICAL_AND, vec![gathered(), one.clone()]);
            let condition = call(op::NOT_STRICTLY_FALSE, vec![gathered()]);
            around(target, names()?, yes(true), condition, step, gathered())
        }
        ("exists", [one]) => {
            let step = call(op::LOGICAL_OR, vec![gathered(), one.clone()]);
            let condition = call(op::NOT_STRICTLY_FALSE, vec![call(op::LOGICAL_NOT, vec![gathered()])]);
            around(target, names()?, yes(false), condition, step, gathered())
        }
        ("existsOne" | "exists_one", [one]) => {
            let next = call(op::ADD, vec![gathered(), number(1)]);
            let step = call(op::CONDITIONAL, vec![one.clone(), next, gathered()]);
            let result = call(op::EQUALS, vec![gathered(), number(1)]);
            around(target, names()?, number(0), yes(true), step, result)
        }
        ("transformList", [filter @ .., one]) if filter.len() < 2 => {
            let step = filtered(push(list(vec![one.clone()])), filter.first());
            around(target, names()?, list(Vec::new()), yes(true), step, gathered())
        }
        ("transformMap" | "transformMapEntry", [filter @ .., one]) if filter.len() < 2 => {
            let mut given = vec![gathered(), first.clone(), one.clone()];
            if name == "transformMapEntry" {
                given.remove(1);
            }
            let step = filtered(call("cel.@mapInsert", given), filter.first());
            let empty = tree(Expr::Map(MapExpr { entries: Vec::new() }));
            around(target, names()?, empty, yes(true), step, gathered())
        }
        _ => return None,
    })
}

/// A loop that makes no round and only gives a name to a value.
pub fn is_bind(made: &ComprehensionExpr) -> bool {
    matches!(&made.iter_range.expr, Expr::List(list) if list.elements.is_empty())
        && matches!(&made.loop_cond.expr, Expr::Literal(LiteralValue::Boolean(on)) if !*on.inner())
        && made.accu_var != GATHERED
}

fn bind(name: &str, value: IdedExpr, result: IdedExpr) -> IdedExpr {
    tree(Expr::Comprehension(Box::new(ComprehensionExpr {
        iter_range: list(Vec::new()),
        iter_var: "#unused".to_owned(),
        iter_var2: None,
        accu_var: name.to_owned(),
        accu_init: value,
        loop_cond: yes(false),
        loop_step: ident(name),
        result,
    })))
}

/// A loop. Without a second name there is one variable.
fn around(
    range: IdedExpr,
    [first, second]: [String; 2],
    start: IdedExpr,
    condition: IdedExpr,
    step: IdedExpr,
    result: IdedExpr,
) -> IdedExpr {
    tree(Expr::Comprehension(Box::new(ComprehensionExpr {
        iter_range: range,
        iter_var: first,
        iter_var2: Some(second).filter(|second| !second.is_empty()),
        accu_var: GATHERED.to_owned(),
        accu_init: start,
        loop_cond: condition,
        loop_step: step,
        result,
    })))
}

fn tree(expr: Expr) -> IdedExpr {
    IdedExpr { id: 0, expr }
}

fn word(of: &IdedExpr) -> Option<String> {
    match &of.expr {
        Expr::Ident(name) => Some(name.clone()),
        _ => None,
    }
}

fn ident(name: &str) -> IdedExpr {
    tree(Expr::Ident(name.to_owned()))
}

fn gathered() -> IdedExpr {
    ident(GATHERED)
}

fn push(one: IdedExpr) -> IdedExpr {
    call(op::ADD, vec![gathered(), one])
}

fn list(elements: Vec<IdedExpr>) -> IdedExpr {
    tree(Expr::List(ListExpr::new(elements)))
}

fn number(of: i64) -> IdedExpr {
    tree(Expr::Literal(LiteralValue::Int(of.into())))
}

fn yes(on: bool) -> IdedExpr {
    tree(Expr::Literal(LiteralValue::Boolean(on.into())))
}

fn call(name: &str, args: Vec<IdedExpr>) -> IdedExpr {
    tree(Expr::Call(CallExpr { func_name: name.to_owned(), target: None, args }))
}
