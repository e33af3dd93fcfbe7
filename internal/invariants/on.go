//go:build invariants

// Package invariants selects, by the build tag invariants, whether the program checks its own data
// structures.
package invariants

// Enabled reports whether checks are on.
const Enabled = true
