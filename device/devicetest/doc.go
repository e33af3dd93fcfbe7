// Package devicetest is the conformance suite of package device: it tests what the doc comments of
// device promise. Every backend must pass it. A backend runs it from a short test file:
//
//	func TestConformance(t *testing.T) {
//		devicetest.Run(t, devicetest.Backend{
//			Open: func(t testing.TB) device.Device { ... },
//			Block: ...,
//		})
//	}
//
// No test asserts a duration. To test that a call waits, a test checks that it has not returned
// before the test releases it.
package devicetest
