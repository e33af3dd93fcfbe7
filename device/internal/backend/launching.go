package backend

import "github.com/cistern-ml/cistern/device"

// Launching is a stream's StreamOptions.Launching.
type Launching func(s device.Stream, name string) (launched func(error))

// Begin announces a kernel that is about to be queued. It returns a function, never nil, to call
// with the error of queuing it.
func (f Launching) Begin(s device.Stream, name string) (launched func(error)) {
	if launched = f(s, name); launched == nil {
		launched = func(error) {}
	}
	return launched
}

// Launch calls queue between the two calls of the hook.
func (f Launching) Launch(s device.Stream, l *device.Launch, queue func(*device.Launch) error) error {
	name := ""
	if l != nil {
		name = l.Name
	}
	launched := f.Begin(s, name)
	err := queue(l)
	launched(err)
	return err
}
