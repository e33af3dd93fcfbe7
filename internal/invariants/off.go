//go:build !invariants

// Package invariants says whether the program checks its own data structures: build tag invariants.
package invariants

// Enabled reports whether checks are on.
const Enabled = false
