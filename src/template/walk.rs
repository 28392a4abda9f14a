//! Going through the statements of a template.

use minijinja::machinery::ast::{BinOpKind, Expr, Stmt};

/// Visits statements in the order of the source, and those within one if its visit says so.
pub(super) fn every<'a, 's>(statements: &'a [Stmt<'s>], visit: &mut dyn FnMut(&'a Stmt<'s>) -> bool) {
    for statement in statements {
        if visit(statement) {
            bodies(statement).into_iter().for_each(|body| every(body, visit));
        }
    }
}

/// The statements within a statement.
fn bodies<'a, 's>(statement: &'a Stmt<'s>) -> [&'a [Stmt<'s>]; 2] {
    match statement {
        Stmt::ForLoop(found) => [&found.body, &found.else_body],
        Stmt::IfCond(found) => [&found.true_body, &found.false_body],
        Stmt::WithBlock(found) => [&found.body, &[]],
        Stmt::SetBlock(found) => [&found.body, &[]],
        Stmt::FilterBlock(found) => [&found.body, &[]],
        Stmt::AutoEscape(found) => [&found.body, &[]],
        Stmt::Macro(found) => [&found.body, &[]],
        Stmt::CallBlock(found) => [&found.macro_decl.body, &[]],
        _ => [&[], &[]],
    }
}

/// The operands of a chain of one operator: `a`, `b` and `c` of `a + b + c`.
pub(super) fn operands<'a, 's>(e: &'a Expr<'s>, is: fn(BinOpKind) -> bool) -> Vec<&'a Expr<'s>> {
    match e {
        Expr::BinOp(op) if is(op.op) => {
            let mut out = operands(&op.left, is);
            out.push(&op.right);
            out
        }
        e => vec![e],
    }
}
