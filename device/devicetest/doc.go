// Package devicetest is the conformance suite of package device: what its doc comments promise, as tests that every
// backend must pass. A backend runs it from a file of a few lines:
//
//	func TestConformance(t *testing.T) {
//		devicetest.Run(t, devicetest.Backend{
//			Open: func(t testing.TB) device.Device { ... },
//			Block: ...,
//		})
//	}
//
// No test asserts how long anything takes. That something waits is shown by an order: it must not return
// before the test has let it.
package devicetest
