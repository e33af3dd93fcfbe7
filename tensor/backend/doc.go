// Package backend is the contract between package tensor and the kernels of a device. It describes
// operations as data:
//
//	backend.Register("mine", func(env backend.Env) (backend.Backend, error) {
//		return &mine{stream: env.Stream()}, nil // with Supports, Do, Prepare and Close
//	})
//	rt, err := tensor.Open("host", tensor.Backend("mine"))
//
// A [Call] is one operation on checked operands. The table of families lists the operations with
// the role of each operand. A [Backend] runs calls on one stream. It needs no list of the
// operations that it supports, because [Backend.Supports] answers for each call.
//
// A backend may be in another module: [Register] makes it available, and package backendtest tests
// it. docs/guide/backend.md explains how to write one, and examples/backend is an example. This
// package is experimental: it may change in any release until there is a second backend.
package backend
