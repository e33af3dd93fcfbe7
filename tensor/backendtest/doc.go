// Package backendtest compares the operations of a backend of package tensor with a reference.
//
//	func TestBackend(t *testing.T) {
//		backendtest.Run(t, func() (*tensor.Runtime, error) {
//			return tensor.Open("host", tensor.Backend("toy"))
//		})
//	}
//
// The test of a backend calls [Run] and nothing else. It takes half a minute on the host, and some
// seconds with -short. A failure names the operation, the kind of numbers and the wrong element. An
// operation with a role that is too narrow fails too: operands that are only read are compared
// afterwards, and operands that are overwritten hold garbage before.
//
// The package is experimental, like package backend.
package backendtest
