package nn

// What tests use of the package that programs can't, by the file that it is of.

// module.go, walk.go

var (
	NameBuffer    = nameBuffer
	ModulesBefore = &modulesBefore
	Snake         = snake
)
