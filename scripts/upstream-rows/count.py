#!/usr/bin/env python3
"""Counts the rows of upstream's unit tests that agree with Ferrovirt.

    count.py ROWS.txt REPORT.json...

Reports are Ginkgo's. A row counts if it asked our code at all; others are about functions that only upstream has. What ROWS.txt lists does
not apply here, each with its reason. Fails if a group is below what it should be, or if a line of ROWS.txt is about no row.
"""

import json
import sys

GROUPS = [
    ("launcher pods", 90, ("template_test.go", "container_disk_test.go")),
    ("VM, VMI and ReplicaSet admission", 99, ("vmi-create-admitter_test.go", "vmi-update-admitter_test.go", "vms-admitter_test.go", "vmirs-admitter_test.go")),
    ("presets, migrations, instance types and preferences", 95, ("vmi-preset-admitter_test.go", "migration-create-admitter_test.go", "migration-update-admitter_test.go", "admitter_test.go")),
]


def read_excuses(path):
    """Lines without indent are reasons; those below them are parts of names of rows."""
    excuses, reason = [], ""
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if not line.strip() or line.startswith("#"):
                continue
            if line.startswith(" "):
                excuses.append((line.strip(), reason))
            else:
                reason = line.strip()
    return excuses


def read_rows(reports):
    for path in reports:
        with open(path, encoding="utf-8") as report:
            suites = json.load(report)
        for suite in suites:
            for spec in suite["SpecReports"] or []:
                if spec["LeafNodeType"] != "It" or spec["State"] in ("skipped", "pending"):
                    continue
                place = spec["LeafNodeLocation"]
                file = place["FileName"].rsplit("/", 1)[-1]
                name = " > ".join([*(spec.get("ContainerHierarchyTexts") or []), spec["LeafNodeText"]])
                asked = any(entry["Name"] == "ferrovirt" for entry in spec.get("ReportEntries") or [])
                yield file, f"{file}: {name}", asked, spec["State"] == "passed", spec.get("Failure") or {}


def main():
    excuses = read_excuses(sys.argv[1])
    used = {part: False for part, _ in excuses}
    rows = list(read_rows(sys.argv[2:]))
    failed = False
    for title, wanted, files in GROUPS:
        agree, differ, excused, own = 0, [], {}, 0
        for file, name, asked, passed, failure in rows:
            if file not in files:
                continue
            if not asked:
                own += 1
                continue
            found = [(part, reason) for part, reason in excuses if part in name]
            if found:
                excused[found[0][1]] = excused.get(found[0][1], 0) + 1
                for part, _ in found:
                    used[part] = True
            elif passed:
                agree += 1
            else:
                differ.append((name, failure))
        total = agree + len(differ)
        share = 100 * agree / total if total else 0
        print(f"{title}: {agree} of {total} agree ({share:.1f} %, {wanted} wanted); {sum(excused.values())} do not apply, {own} are about upstream's own functions")
        for reason, count in sorted(excused.items(), key=lambda item: -item[1]):
            print(f"    {count:3} do not apply: {reason}")
        for name, failure in differ:
            message = (failure.get("Message") or failure.get("ForwardedPanic") or "").strip()
            print(f"    differs: {name}\n        line {failure.get('Location', {}).get('LineNumber')}: " + message[:600].replace("\n", "\n        "))
        failed |= share < wanted
    for part in [part for part, was in used.items() if not was]:
        print(f"no row is called so: {part}")
        failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
