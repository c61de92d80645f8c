//! What takes a right of its own because it leads to a node. Each is `create` on a subresource of pods that nobody can call:
//! cluster administrators have it by their `*`, and whom they give it to.

use crate::authz::{Attributes, On};
use crate::rest::Call;

/// Whether the caller has the right to create `pods/<what>` where the call goes.
pub fn has(call: &Call, what: &str, pod: &str) -> bool {
    let on = On::Resource {
        group: "",
        resource: "pods",
        subresource: what,
        namespace: call.namespace().unwrap_or_default(),
        name: pod,
    };
    call.server.rbac.allowed(&call.server.store, Attributes { user: &call.user, verb: "create", on })
}
