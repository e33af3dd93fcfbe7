package device

// LaunchingHooks is a [StreamOptions].Launching that tells all of those in hooks that are not nil, in their order, and in the opposite
// order that the kernel is launched: what the last one queues is next to the kernel. nil if there are none.
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
