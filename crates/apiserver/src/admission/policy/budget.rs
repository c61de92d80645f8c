//! How long an expression may run. Each round of a loop costs what its body is large, and asks first.

use std::cell::Cell;
use std::time::{Duration, Instant};

use kube_cel::cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue};
use kube_cel::cel::{Context, ExecutionError};

use super::expression::children_mut;

/// What one evaluation may cost (upstream's `PerCallLimit`).
pub const PER_CALL: i64 = 1_000_000;
/// What it may cost on a thread that serves.
pub const SMALL: i64 = 20_000;
/// And how long it may take, since a round may be slow for what it works on.
const MOST_TIME: Duration = Duration::from_secs(2);
/// No name that people can write.
const ASK: &str = "@round";

thread_local! {
    static LEFT: Cell<(i64, Option<Instant>)> = const { Cell::new((i64::MAX, None)) };
}

/// Adds what loops ask.
pub fn add(context: &mut Context<'_>) {
    context.add_function(ASK, |cost: i64| -> Result<bool, ExecutionError> {
        let (left, end) = LEFT.get();
        let left = left.saturating_sub(cost);
        LEFT.set((left, end));
        // Asking for the time is cheap beside a round.
        if left < 0 || end.is_some_and(|end| Instant::now() > end) {
            LEFT.set((-1, end));
            return Err(ExecutionError::function_error("cel", "operation cancelled: actual cost limit exceeded"));
        }
        Ok(true)
    });
}

/// Runs an evaluation that ends within its budget. True if it would have needed more.
pub fn within<T>(cost: i64, work: impl FnOnce() -> T) -> (T, bool) {
    LEFT.set((cost, Some(Instant::now() + MOST_TIME)));
    let done = work();
    let (left, _) = LEFT.replace((i64::MAX, None));
    (done, left < 0)
}

/// Makes every loop ask before each round. Tells whether there is one.
pub fn count_rounds(tree: &mut IdedExpr) -> bool {
    let mut any = false;
    for child in children_mut(&mut tree.expr) {
        any |= count_rounds(child);
    }
    let id = tree.id;
    let Expr::Comprehension(loops) = &mut tree.expr else { return any };
    let cost = i64::try_from(nodes(&mut loops.loop_step) + nodes(&mut loops.loop_cond)).unwrap_or(PER_CALL);
    let call = |name: &str, args: Vec<IdedExpr>| IdedExpr {
        id,
        expr: Expr::Call(CallExpr { func_name: name.to_owned(), target: None, args }),
    };
    let cost = IdedExpr { id, expr: Expr::Literal(LiteralValue::Int(cost.into())) };
    let condition = std::mem::take(&mut loops.loop_cond);
    loops.loop_cond = call("_&&_", vec![call(ASK, vec![cost]), condition]);
    true
}

fn nodes(tree: &mut IdedExpr) -> usize {
    1 + children_mut(&mut tree.expr).into_iter().map(nodes).sum::<usize>()
}
