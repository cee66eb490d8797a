"""What programs are worth before they are rewards: do experts complete them, and nothing else?"""
