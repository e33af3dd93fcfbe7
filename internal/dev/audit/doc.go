// Package audit compares every figure in a report with a truth that shares no code with the report.
//
// A program of allocations, frees, copies and steps runs on a device that counts its calls. The
// tests keep independent books of the program's actions and of the calls to the device. Each
// artefact, such as a JSON document, a pprof file, a table, spans or metrics, is then read as a
// user reads it, and all of its figures must agree with the books. A figure that the books lack
// fails, like a wrong one. The section "Audits" of docs/testing.md lists the artefacts.
package audit
