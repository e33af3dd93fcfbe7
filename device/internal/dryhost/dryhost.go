// Package dryhost lets package dry make host devices without memory and without arithmetic.
package dryhost

import "github.com/cistern-ml/cistern/device"

// Config configures such a device.
type Config struct {
	// Capacity is the device's memory in bytes. 0 is the default of a host device.
	Capacity int64
	// Addresses is how many bytes all reservations may have. 0 is a host device's.
	Addresses int64
	// Front makes the device that the program sees of the one that computes nothing: streams,
	// graphs and communicators return it as theirs.
	Front func(below device.Device) device.Device
}

// New opens a device, and returns its front. Package host sets it.
//
// Addresses of such a device are never used twice. Its calls are checked as those of any host
// device; launches may have a Kernel instead of a Func, and run neither. An operation is over when
// the host waits for the device, frees memory, or has queued as much as a stream takes; only the
// functions of OnDone run at once. What copies write to host memory is zeros. A communicator does
// not wait for other ranks, and exchanges nothing.
var New func(Config) (device.Device, error)
