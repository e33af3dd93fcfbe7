// Package backend is the contract between package tensor and the kernels of a device: operations as
// data.
//
// A [Call] is one operation on operands that were checked. The table of families lists the
// operations with the role of each operand. A [Backend] runs calls on one stream; it needs no list
// of what it can do, because [Backend.Supports] answers for a call.
//
// A backend may lie in another module: [Register] makes it known, and package backendtest tests it.
// docs/guide/backend.md explains how to write one, and examples/backend is one. This package is
// experimental: it may change in any release until there is a second backend.
package backend
