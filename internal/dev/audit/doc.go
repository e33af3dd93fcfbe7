// Package audit compares every figure that a report shows with a truth that shares no code with the
// report.
//
// A program of allocations, frees, copies and steps runs on a device that counts its own calls. The
// tests keep books of what the program did, and of what the device was asked for, and know nothing
// else. Each artefact, such as a JSON document, a pprof file, a table, spans or metrics, is then
// read as a user reads it, and all of its figures must be those of the books: a figure that the
// books lack fails, as a wrong one does. The section "Audits" of docs/testing.md lists them.
package audit
