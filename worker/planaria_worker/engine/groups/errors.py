"""What a rank sees when its group cannot go on."""


class GroupBroken(Exception):  # noqa: N818 - as Fenced: an outcome, not a defect
    """The group was shut, lost a peer, or waited too long: it will never carry a message again.

    Which of these it was does not matter to the rank: it drops the step and looks at the fence.
    """
