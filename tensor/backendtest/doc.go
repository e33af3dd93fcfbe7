// Package backendtest compares the operations of a backend of package tensor with a reference.
//
// [Run] is all that the test of a backend needs. It takes half a minute on the host, and some
// seconds with -short. Failures name the operation, the kind of numbers and the element that is
// wrong. An operation that was given a role that is too narrow fails too, because operands that are
// only read are compared afterwards, and those that are overwritten hold garbage before.
//
// The package is experimental, as package backend is.
package backendtest
