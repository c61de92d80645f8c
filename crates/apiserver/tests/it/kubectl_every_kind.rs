//! kubectl and every built-in kind.

use std::collections::BTreeSet;

use crate::support::Server;
use crate::support::kubectl::Kubectl;

const MANIFEST: &str = include_str!("../data/every-kind.yaml");

#[tokio::test]
async fn every_kind_is_created_applied_and_explained() {
    let kubectl = Kubectl::start(Server::start().await).await;
    let listed = kubectl.run("api-resources --verbs=create,list --no-headers", "").await;
    let kinds: BTreeSet<&str> = listed.lines().filter_map(|line| line.split_whitespace().next_back()).collect();
    let written: BTreeSet<&str> = MANIFEST.lines().filter_map(|line| line.strip_prefix("kind: ")).collect();
    let missing: Vec<_> = kinds.difference(&written).collect();
    assert!(missing.is_empty(), "the manifest has no object of {missing:?}");
    let count = MANIFEST.matches("\nkind: ").count();
    let said = kubectl.run("create -f -", MANIFEST).await;
    assert_eq!(said.lines().filter(|l| l.ends_with(" created")).count(), count, "{said}");
    // Objects that kubectl made take what apply leaves behind. Lists that are replaced as a whole count as configured, here
    // and elsewhere, when the server has defaults for their items, and so do empty ones, which are null in storage.
    kubectl.run("apply -f -", MANIFEST).await;
    let said = kubectl.run("apply -f -", MANIFEST).await;
    let unchanged = said.lines().filter(|l| l.ends_with(" unchanged")).count();
    assert!(unchanged + 9 >= count && !said.contains(" created"), "{said}");
    let said = kubectl.run("apply --server-side --force-conflicts -f -", MANIFEST).await;
    assert_eq!(said.lines().filter(|l| l.ends_with(" serverside-applied")).count(), count, "{said}");
    let (same, said) = kubectl.try_run("diff --server-side --force-conflicts -f -", MANIFEST).await;
    assert!(same, "{said}");
    for line in listed.lines() {
        let plural = line.split_whitespace().next().unwrap();
        let version = line.split_whitespace().rev().nth(2).unwrap();
        let said = kubectl.run(&format!("explain {plural} --api-version={version}"), "").await;
        assert!(said.contains("FIELDS:"), "{said}");
        kubectl.run(&format!("get {plural} --all-namespaces"), "").await;
    }
    kubectl.stop().await;
}
