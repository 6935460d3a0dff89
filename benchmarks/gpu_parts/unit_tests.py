"""Runs every unit test with a device variant: those with Cuda in their names, which `make test` enforces."""

from xml.etree import ElementTree

from gpu_parts.context import Column, Failure

FILTER = "*Cuda*:*cuda*"


def run(context):
    context.table([Column("unit tests", 16), Column("passed", 6, ".0f"), Column("skipped", 7, ".0f"), Column("why", 1)])
    notes = {}  # a reason, which many tests share, and its number below the table
    for program in sorted(context.build.glob("*_test")):
        if may_have_tests(context, program):
            context.case({"unit tests": program.name}, lambda: measure(context, program, notes))
    for reason, number in notes.items():
        print(f"({number}) {reason}")


def may_have_tests(context, program):
    try:
        listed = context.run_program(program.name, "--gtest_list_tests", f"--gtest_filter={FILTER}", timeout=60)
    except Failure:
        return True  # measure() will report why it does not start
    return "\n  " in listed  # tests are indented below their suites


def measure(context, program, notes):
    with context.folder() as folder:
        report = folder / "report.xml"
        failure = None
        try:
            context.run_program(program.name, f"--gtest_filter={FILTER}", f"--gtest_output=xml:{report}",
                                timeout=120)
        except Failure as error:
            failure = error
        if not report.is_file():  # the program did not start, or died
            raise failure
        cases = ElementTree.parse(report).iter("testcase")
        tests = {f"{case.get('classname')}.{case.get('name')}": case for case in cases}
    failed = {name: " ".join(test.find("failure").get("message").split()) for name, test in tests.items()
              if test.find("failure") is not None}
    if failed:
        raise Failure(f"{len(failed)} of {len(tests)} failed: " + "; ".join(f"{name}: {why}" for name, why in failed.items()))
    if failure:  # the program died after the last test
        raise failure
    skipped = [name for name, test in tests.items() if test.find("skipped") is not None]
    reasons = sorted({tests[name].find("skipped").get("message").splitlines()[-1] for name in skipped})
    why = " ".join(f"({notes.setdefault(reason, len(notes) + 1)})" for reason in reasons)
    return {"passed": len(tests) - len(skipped), "skipped": len(skipped), "why": why, "reasons": reasons, "tests": list(tests)}
