package terminal

// Missing is what Apply must still set to take a terminal from modes have to modes want: keyboard flags count as
// a whole.
func Missing(want, have Modes) Modes {
	missing := want &^ have
	if have&KittyKeys != 0 || want&KittyKeys == 0 {
		return missing & (KittyKeys - 1)
	}
	return missing&(KittyKeys-1) | want&^(KittyKeys-1)
}
