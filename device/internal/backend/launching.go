package backend

import "github.com/cistern-ml/cistern/device"

// Launching is StreamOptions.Launching of a stream.
type Launching func(s device.Stream, name string) (launched func(error))

// Begin tells of a kernel that is about to be queued, and returns what to call with the error of that, never nil.
func (f Launching) Begin(s device.Stream, name string) (launched func(error)) {
	if launched = f(s, name); launched == nil {
		launched = func(error) {}
	}
	return launched
}

// Launch tells of a kernel while queue queues it.
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
