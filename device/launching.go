package device

// LaunchingHooks combines hooks into one [StreamOptions].Launching and ignores those that are nil.
// Before a kernel the hooks run in their order; after it the functions that they returned run in
// the opposite order, so that the events of the last hook are closest to the kernel. Without hooks
// it returns nil.
func LaunchingHooks(hooks ...func(s Stream, name string) (launched func(error))) func(s Stream, name string) (launched func(error)) {
	var all launchingHooks
	for _, hook := range hooks {
		if hook != nil {
			all = append(all, hook)
		}
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return all.launching
}

type launchingHooks []func(s Stream, name string) (launched func(error))

func (all launchingHooks) launching(s Stream, name string) (launched func(error)) {
	told := make([]func(error), 0, len(all))
	for _, hook := range all {
		if launched := hook(s, name); launched != nil {
			told = append(told, launched)
		}
	}
	if len(told) == 0 {
		return nil
	}
	return func(err error) {
		for i := len(told) - 1; i >= 0; i-- {
			told[i](err)
		}
	}
}
