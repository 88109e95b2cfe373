package sdk

import "os"

// nameProcess gives the process a name in ps: it may have been executed from a descriptor, and
// would be called after its number.
func nameProcess(info Info) {
	name := "cotal:" + info.Name
	if len(name) > 15 {
		name = name[:15] // the kernel keeps 15 bytes
	}
	_ = os.WriteFile("/proc/self/comm", []byte(name), 0o600)
}
