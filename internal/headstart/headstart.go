// Package headstart gives package autograd access to an unexported function of package tensor.
package headstart

import "github.com/cistern-ml/cistern/device"

// GoFirst gives the work queued next on the stream of a *tensor.Runtime the multiprocessors before
// the work queued next on s. Package tensor sets it.
var GoFirst func(runtime any, s device.Stream) error
