//! What expressions see of one request.

use kube_cel::cel::{Context, Value as Cel};
use serde_json::Value;

use super::authorizer;
use super::expression::{self, Expression, map_of, to_cel};
use super::load::{Binding, Policy};
use crate::admission::{Operation, review};
use crate::object::{api_version, at, group_of, text};
use crate::rest::Call;
use crate::storage::parse;
use ferrovirt_schema::LabelSelector;

/// One request, in the version that a policy or webhook wants to see.
pub struct Scene<'a> {
    pub call: &'a Call,
    pub operation: Operation,
    pub object: Option<&'a Value>,
    pub old: Option<&'a Value>,
    pub version: &'a str,
}

impl Scene<'_> {
    /// The variables that every expression has.
    pub fn context(&self) -> Context<'static> {
        let mut context = expression::context();
        let dry_run = self.call.dry_run().unwrap_or(false);
        let mut review = review(self.call, "", self.version, self.operation, self.object, self.old, dry_run);
        let mut request = review["request"].take();
        for (name, key) in [("object", "object"), ("oldObject", "oldObject")] {
            context.add_variable_from_value(name, to_cel(&request[key].take()));
        }
        if let Some(map) = request.as_object_mut() {
            map.remove("object");
            map.remove("oldObject");
            map.remove("uid");
        }
        context.add_variable_from_value("request", to_cel(&request));
        context.add_variable_from_value("namespaceObject", self.namespace_object());
        context.add_variable_from_value("params", Cel::Null);
        authorizer::add(&mut context, self.call);
        context
    }

    /// The namespace an object is in; null for cluster-scoped ones.
    fn namespace_object(&self) -> Cel {
        let Some(namespace) = self.call.namespace() else { return Cel::Null };
        let key = ferrovirt_store::Key::new("", namespace);
        let entry = self.call.server.store.get("namespaces", &key);
        entry.and_then(|e| parse(&e).ok()).map_or(Cel::Null, |namespace| to_cel(&namespace))
    }

    /// The parameters that a binding names: nothing, or one evaluation per object. Err: the policy counts as failed.
    pub fn params(&self, policy: &Policy, binding: &Binding) -> Result<Vec<Option<Value>>, String> {
        let (Some((version, kind)), Some(reference)) = (&policy.param_kind, &binding.param) else {
            return match &policy.param_kind {
                Some((_, kind)) if binding.param.is_none() => {
                    Err(format!("paramKind {kind} is set and the binding has no paramRef"))
                }
                _ => Ok(vec![None]),
            };
        };
        let snapshot = self.call.server.registry.snapshot();
        let resource = snapshot
            .find_kind(group_of(version), kind)
            .ok_or_else(|| format!("failed to find resource referenced by paramKind: '{version}, Kind={kind}'"))?;
        let namespace = match text(reference, &["namespace"]) {
            _ if !resource.namespaced => None,
            "" => Some(
                self.call
                    .namespace()
                    .ok_or("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources")?,
            ),
            namespace => Some(namespace),
        };
        let list = self.call.server.store.list(&resource.storage, namespace);
        let name = text(reference, &["name"]);
        let selector = match at(reference, &["selector"]).filter(|s| s.is_object()) {
            Some(selector) => Some(LabelSelector::from_json(selector).map_err(|e| e.to_string())?),
            None => None,
        };
        let wanted = list.items.iter().filter(|e| match &selector {
            Some(selector) => selector.matches(e.meta.labels()),
            None => &*e.key.name == name,
        });
        let mut params: Vec<Option<Value>> = wanted.filter_map(|e| parse(e).ok()).map(Some).collect();
        for param in params.iter_mut().flatten() {
            param["apiVersion"] = api_version(&resource.group, crate::object::version_of(version)).into();
        }
        if params.is_empty() && text(reference, &["parameterNotFoundAction"]) != "Allow" {
            return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
        }
        Ok(params)
    }
}

/// Adds the policy's own variables. One that cannot be computed is missing, and fails whoever asks for it.
pub fn add_variables(context: &mut Context<'static>, policy: &Policy, params: Option<&Value>) {
    if let Some(params) = params {
        context.add_variable_from_value("params", to_cel(params));
    }
    let mut known: Vec<(String, Cel)> = Vec::new();
    context.add_variable_from_value("variables", map_of(known.iter().cloned()));
    for (name, expression) in &policy.variables {
        if let Ok(value) = expression.evaluate(context) {
            known.push((name.clone(), value));
            context.add_variable_from_value("variables", map_of(known.iter().cloned()));
        }
    }
}

/// Whether all match conditions hold. One that is false decides; otherwise one that fails is an error.
pub fn conditions_hold(context: &Context<'_>, conditions: &[(String, Expression)]) -> Result<bool, String> {
    let mut failed = None;
    for (name, condition) in conditions {
        match condition.holds(context) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) => {
                failed.get_or_insert_with(|| format!("match condition '{name}' resulted in error: {error}"));
            }
        }
    }
    failed.map_or(Ok(true), Err)
}
