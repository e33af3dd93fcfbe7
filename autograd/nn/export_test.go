package nn

// Unexported parts of the package for tests, by their files.

// module.go, walk.go

var (
	NameBuffer    = nameBuffer
	ModulesBefore = &modulesBefore
	Snake         = snake
)
